"""Numbers, replay and credit of a link, without a connection."""

import pytest

from libs.job.transport.frames import NUMBER_MAX, Flag, Header, Kind
from libs.job.transport.session import ACKNOWLEDGE_EVERY, WINDOW, Entry, ProtocolError, Session


def sent(session: Session, kind: Kind = Kind.MESSAGE) -> Entry:
    entry = Entry(kind)
    session.add(entry)
    assert session.next_entry() is entry
    session.transmitted()
    return entry


def message(number: int, flags: Flag = Flag.NONE) -> Header:
    return Header(Kind.MESSAGE, flags, number=number)


def take(session: Session, header: Header) -> None:
    assert session.is_new(header)
    session.accept(header)


def test_frames_are_numbered_from_one_and_done_when_acknowledged() -> None:
    session = Session(4, 4)
    entries = [sent(session) for _ in range(3)]
    assert [entry.number for entry in entries] == [1, 2, 3]
    assert session.hear(2, 4) == entries[:2]
    assert session.hear(2, 4) == []
    assert list(session.unacknowledged) == entries[2:]


def test_a_sender_without_credit_may_not_send_messages_but_may_answer() -> None:
    session = Session(4, 1)
    assert sent(session).flags == Flag.ASKS
    assert not session.may_send(Kind.MESSAGE)
    assert session.may_send(Kind.WRITE) and session.may_send(Kind.DATA)
    session.hear(1, 2)
    assert session.may_send(Kind.MESSAGE)


def test_a_full_window_stops_requests_but_not_answers() -> None:
    session = Session(4, 4)
    entries = [sent(session, Kind.WRITE) for _ in range(WINDOW)]
    assert not session.may_send(Kind.WRITE) and session.may_send(Kind.FAULT)
    assert [entry.flags for entry in entries[-2:]] == [Flag.NONE, Flag.ASKS]
    answer = sent(session, Kind.DATA)
    assert session.answers_waiting == 1
    session.hear(answer.number, 4)
    assert session.answers_waiting == 0 and session.may_send(Kind.WRITE)


def test_after_a_reconnection_the_rest_is_sent_again_and_nothing_else() -> None:
    session = Session(4, 4)
    entries = [sent(session) for _ in range(4)]
    assert session.reconnect(2) == entries[:2]
    assert session.repeated == 2
    again = []
    while (entry := session.next_entry()) is not None:
        again.append(entry)
        session.transmitted()
    assert again == entries[2:]
    assert session.owes()  # the peer may have missed credit


@pytest.mark.parametrize("received", [0, 3])
def test_a_peer_that_lies_about_what_it_received_is_refused(received: int) -> None:
    session = Session(4, 4)
    sent(session)
    sent(session)
    session.hear(1, 4)
    with pytest.raises(ProtocolError, match="1 to 2 are possible"):
        session.reconnect(received)


def test_acknowledging_what_was_not_sent_is_refused() -> None:
    session = Session(4, 4)
    session.add(Entry(Kind.MESSAGE))
    with pytest.raises(ProtocolError, match="frame 1 is acknowledged, and 0"):
        session.hear(1, 4)


@pytest.mark.parametrize("credit", [3, NUMBER_MAX])
def test_credit_that_goes_back_or_is_absurd_is_refused(credit: int) -> None:
    with pytest.raises(ProtocolError, match="credit"):
        Session(4, 4).hear(0, credit)


def test_a_frame_that_was_received_before_is_dropped_and_counted() -> None:
    session = Session(4, 4)
    take(session, message(1))
    assert not session.is_new(message(1))
    assert session.doubled == 1


def test_a_gap_is_refused() -> None:
    with pytest.raises(ProtocolError, match="frame 2 follows frame 0"):
        Session(4, 4).is_new(message(2))


def test_a_message_beyond_the_credit_is_refused() -> None:
    session = Session(1, 4)
    take(session, message(1))
    with pytest.raises(ProtocolError, match="beyond the credit of 1"):
        session.is_new(message(2))
    session.release()
    assert session.is_new(message(2))


def test_the_peer_is_told_when_it_asks() -> None:
    session = Session(4, 4)
    take(session, message(1))
    assert not session.owes()
    session.ask()
    assert session.owes()
    assert session.told() == (1, 4)
    assert not session.owes()
    take(session, message(2, Flag.ASKS))
    assert session.owes()


def test_the_peer_is_told_when_it_may_wait_for_credit() -> None:
    session = Session(3, 4)
    for number in (1, 2, 3):
        take(session, message(number))
    session.told()
    session.release()
    assert session.owes() and session.told() == (3, 4)


def test_the_peer_is_told_when_half_of_the_buffers_are_free_again() -> None:
    session = Session(4, 4)
    take(session, message(1))
    take(session, message(2))
    session.release()
    assert not session.owes()
    session.release()
    assert session.owes()


def test_the_peer_is_told_after_many_frames() -> None:
    session = Session(4, 4)
    for number in range(1, ACKNOWLEDGE_EVERY + 1):
        assert not session.owes()
        take(session, Header(Kind.WRITE, number=number))
    assert session.owes()
