"""Waiting on a link's connection."""

import time
from collections.abc import Iterator

import pytest

from libs.job.transport.frames import Kind
from libs.job.transport.progress import Progress
from libs.job.transport.session import Entry, Session


class BusyWire:
    """A connection that takes nothing at first, then all; its peer never says a word."""

    def __init__(self, session: Session, refusals: int) -> None:
        self.session = session
        self.refusals = refusals
        self.waits = 0

    def pump(self) -> bool:
        return False

    def transmit(self) -> bool:
        if self.refusals:
            self.refusals -= 1
            return False
        while self.session.next_entry() is not None:
            self.session.transmitted()
        return True

    def wait(self, wake: int, until_s: float) -> None:
        self.waits += 1
        if self.session.next_entry() is None:
            time.sleep(max(0.0, until_s - time.monotonic()))

    def close(self) -> None:
        pass


@pytest.fixture
def progress() -> Iterator[Progress]:
    made = Progress(
        "peer",
        Session(8, 8),
        dial=None,
        done=lambda entries: None,
        restarted=lambda: None,
        give_up_s=1.0,
    )
    yield made
    made.stop()


@pytest.mark.parametrize("refusals", range(6))
def test_a_sender_does_not_wait_for_the_peer_once_its_frame_has_left(
    progress: Progress, refusals: int
) -> None:
    session = progress.session
    progress.wire = BusyWire(session, refusals)

    def left() -> bool:
        progress.transmit()
        return session.next_entry() is None

    with progress.lock:
        session.add(Entry(Kind.MESSAGE, b"x"))
        begun_s = time.monotonic()
        progress.until(left, begun_s + 5, "the frame did not leave")
    assert time.monotonic() - begun_s < 4
