"""The disk of the log: one warning when space is short, and a restart after a full disk."""

from pathlib import Path

from libs.embedded.disk_watch import EVERY_S, MIB, NEAR_S, DiskWatch


class Seen:
    """A watch over a disk that the test fills; its messages and restarts, in order."""

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


def test_a_disk_with_space_causes_no_message() -> None:
    assert Seen().look(1_000, 64, 500) == []


def test_a_short_disk_causes_one_warning_and_no_restart() -> None:
    assert Seen().look(63, 40, 20, 64, 30) == [
        "only 63 MiB are free on the disk of /state",
        "only 30 MiB are free on the disk of /state",
    ]


def test_the_server_is_restarted_when_a_full_disk_has_space_again() -> None:
    seen = Seen()
    assert seen.look(30, 0, 0, 1, 20) == [
        "only 30 MiB are free on the disk of /state",
        "the disk of /state is full",
    ]
    assert seen.look(70, 80)[2:] == ["the disk of /state has space again", "RESTART"]
    assert seen.look(0)[4:] == ["the disk of /state is full"]


def test_a_disk_that_could_be_full_soon_is_looked_at_more_often() -> None:
    """The program that filled it may remove its file at once; the server stores nothing more."""
    seen = Seen()
    seen.free_mib = 4_000
    assert seen.watch.look() == EVERY_S
    for seen.free_mib in (2_000, 10, 500):
        assert seen.watch.look() == NEAR_S
    assert seen.events[-1] == "RESTART"
