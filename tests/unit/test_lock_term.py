"""A holder's own time: renew at a third, ask the work to end, kill it, all before the end."""

from libs.client.lock_term import LockTerm


def test_the_time_counts_from_when_the_request_was_sent() -> None:
    term = LockTerm(ttl_ns=60, sent_ns=100)
    assert (term.renew_ns, term.ask_ns, term.kill_ns, term.end_ns) == (120, 148, 157, 160)


def test_a_renewal_counts_from_when_it_was_sent() -> None:
    term = LockTerm(ttl_ns=60, sent_ns=100)
    term.renewed(115)
    assert term.end_ns == 175


def test_a_late_answer_to_an_earlier_renewal_shortens_nothing() -> None:
    term = LockTerm(ttl_ns=60, sent_ns=100)
    term.renewed(130)
    term.renewed(110)
    assert term.end_ns == 190
