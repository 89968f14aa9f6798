"""Contract tests of the bus: they run on core NATS and on its twin in memory.

Concurrent answers: test_bus_concurrent.py.
"""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from libs.common.errors import Unavailable
from libs.common.transport.bus import MESSAGE_BYTES_MAX, Bus, RequestFailed

ANSWER_S = 5.0
SHORT_S = 0.2
Buses = tuple[Bus, Bus]


class Listener:
    """Keeps what it hears and answers with `answer(data)`."""

    def __init__(self, answer: Callable[[bytes], bytes | None] = lambda data: data) -> None:
        self.heard: list[tuple[str, bytes]] = []
        self.answer = answer

    async def __call__(self, subject: str, data: bytes) -> bytes | None:
        self.heard.append((subject, data))
        return self.answer(data)


async def settled(bus: Bus, subject: str) -> None:
    """Wait until the subscribers have handled every earlier message on the subject."""
    await bus.request(subject, b"end", ANSWER_S)


async def heard_by(listeners: Sequence[Listener], subject: str) -> None:
    """By each of them, b"x": of several subscriptions none waits for another."""
    async with asyncio.timeout(ANSWER_S):
        while not all((subject, b"x") in listener.heard for listener in listeners):
            await asyncio.sleep(0.01)


async def test_messages_of_one_sender_arrive_in_order(buses: Buses) -> None:
    here, there = buses
    listener = Listener()
    await there.subscribe("a.b", listener)
    await settled(here, "a.b")
    for n in range(100):
        await here.publish("a.b", b"%d" % n)
    await settled(here, "a.b")
    assert [data for _, data in listener.heard[1:-1]] == [b"%d" % n for n in range(100)]


async def test_permitted_request_is_answered(buses: Buses) -> None:
    here, there = buses
    await there.subscribe("ask", Listener(lambda data: b"re: " + data))
    await there.request("ask", b"", ANSWER_S)
    assert await here.request("ask", b"why", ANSWER_S) == b"re: why"


@pytest.mark.parametrize(
    ("pattern", "subject", "heard"),
    [
        ("a.*", "a.b", True),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.>", "a.b.c", True),
        ("a.>", "a", False),
        ("a.*.c", "a.b.c", True),
        ("a.b", "a.c", False),
    ],
)
async def test_a_star_matches_one_word_and_an_arrow_the_rest(
    buses: Buses, pattern: str, subject: str, heard: bool
) -> None:
    here, there = buses
    listener = Listener()
    await there.subscribe(pattern, listener)
    await there.subscribe("end", Listener())
    await settled(there, "end")
    await here.publish(subject, b"x")
    await settled(here, "end")
    await (heard_by([listener], subject) if heard else asyncio.sleep(0.05))
    assert listener.heard == ([(subject, b"x")] if heard else [])


async def test_all_listeners_get_the_message(buses: Buses) -> None:
    here, there = buses
    listeners = [Listener(), Listener()]
    for listener in listeners:
        await there.subscribe("a", listener)
    await settled(there, "a")
    await here.publish("a", b"x")
    await settled(here, "a")
    await heard_by(listeners, "a")
    assert [listener.heard.count(("a", b"x")) for listener in listeners] == [1, 1]


async def test_request_without_a_listener_is_unavailable(buses: Buses) -> None:
    with pytest.raises(Unavailable):
        await buses[0].request("unknown", b"", SHORT_S)


async def test_a_request_without_an_answer_raises_unavailable_in_time(
    buses: Buses,
) -> None:
    here, there = buses
    listener = Listener(lambda data: None if data == b"hush" else data)
    await there.subscribe("ask", listener)
    await settled(there, "ask")
    with pytest.raises(Unavailable):
        await here.request("ask", b"hush", SHORT_S)
    assert ("ask", b"hush") in listener.heard


@pytest.mark.parametrize("concurrent", [False, True])
async def test_a_handler_that_cannot_answer_fails_the_request_at_once(
    buses: Buses, concurrent: bool
) -> None:
    here, there = buses

    async def answer(subject: str, data: bytes) -> bytes:
        if data == b"fail":
            raise RequestFailed("the disk\r\nof \u00fc is away")
        return data

    await there.subscribe("ask", answer, concurrent=concurrent)
    await settled(there, "ask")
    with pytest.raises(Unavailable, match=r"^the disk of \? is away$"):
        await here.request("ask", b"fail", ANSWER_S)
    await here.publish("ask", b"fail")
    assert await here.request("ask", b"next", ANSWER_S) == b"next"


async def test_late_answer_is_harmless(buses: Buses) -> None:
    here, there = buses
    go = asyncio.Event()

    async def answer(subject: str, data: bytes) -> bytes:
        if data == b"late":
            await go.wait()
        return data

    await there.subscribe("ask", answer)
    await settled(there, "ask")
    with pytest.raises(Unavailable):
        await here.request("ask", b"late", SHORT_S)
    go.set()
    assert await here.request("ask", b"next", ANSWER_S) == b"next"


async def test_message_without_a_listener_is_lost_without_harm(buses: Buses) -> None:
    await buses[0].publish("unknown", b"x")


async def test_a_message_is_not_handled_inside_the_call_that_sends_it(buses: Buses) -> None:
    here, there = buses
    listener = Listener()
    await there.subscribe("a", listener)
    await settled(there, "a")
    await here.publish("a", b"x")
    assert ("a", b"x") not in listener.heard


async def test_a_message_that_is_too_large_is_named_in_the_log_with_its_size(
    buses: Buses, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = buses
    listener = Listener()
    await there.subscribe("a", listener)
    await settled(there, "a")
    await here.publish("a", bytes(MESSAGE_BYTES_MAX + 1))
    await settled(here, "a")
    assert [len(data) for _, data in listener.heard] == [3, 3]
    (line,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert f"{MESSAGE_BYTES_MAX + 1} bytes on a " in line


async def test_a_message_of_the_largest_size_arrives(buses: Buses) -> None:
    here, there = buses
    listener = Listener()
    await there.subscribe("a", listener)
    await settled(here, "a")
    await here.publish("a", bytes(MESSAGE_BYTES_MAX))
    await settled(here, "a")
    assert [len(data) for _, data in listener.heard] == [3, MESSAGE_BYTES_MAX, 3]


async def test_request_that_is_too_large_fails_at_once(buses: Buses) -> None:
    here, there = buses
    await there.subscribe("ask", Listener())
    await settled(here, "ask")
    with pytest.raises(Unavailable, match="bytes on ask"):
        await here.request("ask", bytes(MESSAGE_BYTES_MAX + 1), ANSWER_S)


async def test_answer_that_is_too_large_fails_the_request(buses: Buses) -> None:
    here, there = buses
    await there.subscribe(
        "ask", Listener(lambda data: bytes(MESSAGE_BYTES_MAX + 1) if data == b"much" else data)
    )
    await settled(here, "ask")
    with pytest.raises(Unavailable, match="the answer to ask"):
        await here.request("ask", b"much", ANSWER_S)
