"""The disk under the log: said once when it is short, and the server is started again once a full
one has room.
"""

from pathlib import Path

from libs.embedded.disk_watch import MIB, DiskWatch


class Seen:
    """A watch over a disk that the test fills; what was said, in which order with restarts."""

    def __init__(self) -> None:
        self.free_mib = 1_000
        self.events: list[str] = []
        self.watch = DiskWatch(
            Path("/state"),
            lambda: self.free_mib * MIB,
            lambda text: self.events.append(text.split(":")[0]),
            lambda: self.events.append("RESTART"),
        )

    def look(self, *free_mib: int) -> list[str]:
        for self.free_mib in free_mib:
            self.watch.look()
        return self.events


def test_a_disk_with_room_is_no_news() -> None:
    assert Seen().look(1_000, 64, 500) == []


def test_a_short_disk_is_said_once_until_it_has_room_again_and_the_server_goes_on() -> None:
    assert Seen().look(63, 40, 10, 64, 30) == [
        "only 63 MiB are free under /state",
        "only 30 MiB are free under /state",
    ]


def test_after_a_full_disk_the_server_is_started_again_once_there_is_room_enough() -> None:
    seen = Seen()
    assert seen.look(30, 0, 0, 1, 20) == [
        "only 30 MiB are free under /state",
        "the disk under /state is full",
    ]
    assert seen.look(70, 80)[2:] == ["there is room under /state again", "RESTART"]
    assert seen.look(0)[4:] == ["the disk under /state is full"]
