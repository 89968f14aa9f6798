"""A job's input is bounded, and never waits for a wake-up that does not come."""

import os

from services.node_agent.machine.poll_loop import PollLoop
from services.node_agent.supervisor.stdin_feed import MAX_BUFFER_BYTES, StdinFeed


def feed_and_pipe() -> tuple[PollLoop, StdinFeed, int, list[str]]:
    read, write = os.pipe()
    os.set_blocking(write, False)
    loop, drained = PollLoop(), []
    return loop, StdinFeed(loop, write, lambda: drained.append("drained")), read, drained


def test_input_beyond_the_bound_is_refused_until_the_feed_is_drained() -> None:
    loop, feed, read, drained = feed_and_pipe()
    data = b"x" * (2 * MAX_BUFFER_BYTES)
    assert not feed.offer(0, data, True)
    got = b""
    while not feed.offer(0, data, True):
        got += os.read(read, 1 << 20)
        loop.run_once(0)
    assert drained
    while not feed.closed:
        got += os.read(read, 1 << 20)
        loop.run_once(0)
    assert got + os.read(read, 1 << 20) == data


def test_a_request_that_waits_always_has_bytes_on_their_way() -> None:
    loop, feed, read, drained = feed_and_pipe()
    feed.offer(0, b"a" * MAX_BUFFER_BYTES, False)
    os.read(read, 1 << 20)
    assert not feed.offer(MAX_BUFFER_BYTES, b"b" * MAX_BUFFER_BYTES, False)
    os.read(read, 1 << 20)
    loop.run_once(0)
    assert drained == ["drained"]


def test_an_end_that_was_taken_is_over_before_its_bytes_have_been_read() -> None:
    _, feed, read, _ = feed_and_pipe()
    assert not feed.over
    assert feed.offer(0, b"x" * MAX_BUFFER_BYTES, True)
    assert feed.over and not feed.closed
    os.close(read)


def test_a_job_that_closed_its_input_takes_nothing_more() -> None:
    _, feed, read, _ = feed_and_pipe()
    os.close(read)
    assert feed.offer(0, b"x", False)
    assert feed.closed
    assert feed.offer(0, b"xyz", False)
    assert feed.next_offset == 1
