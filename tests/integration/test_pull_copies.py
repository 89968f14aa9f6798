"""The folder of a tenant's copies: what is found, what is in use, and what goes first."""

import json
import os
import threading
from pathlib import Path

import pytest

from libs.job.pulling.copies import Copies, Copy, lock_of
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import Listed

KIB = 1 << 10
A, B, C = "a" * 40, "b" * 40, "c" * 40


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    made = Copies(tmp_path / "copies", tmp_path / "uses")
    made.folder.mkdir()
    made.uses.mkdir()
    return made


def made(copies: Copies, name: str, commit: str = A, used: int = 1, size: int = 4 * KIB) -> Copy:
    """Publish a copy of one file, last used at `used`."""
    copy = Copy(name, commit, revisions=("main",), size_bytes=size, files=1)
    place = copies.place(name, commit)
    place.mkdir(parents=True)
    (place / "w").write_bytes(bytes(size))
    copies.publish(copy, [Listed("w", size, "git", "d" * 40)])
    os.utime(copies.place(name, commit, ".json"), (used, used))
    found = copies.read(name, commit)
    assert found is not None
    return found


def names(copies: Copies) -> list[str]:
    return [copy.repository for copy in copies.all()]


def test_a_copy_without_a_description_is_incomplete_and_not_found(copies: Copies) -> None:
    copy = made(copies, "x/y")
    assert copies.find("x/y", "main") == copy == copies.find("x/y", A)
    copies.place("x/y", A, ".json").unlink()
    assert copies.find("x/y", "main") is None is copies.find("x/y", A)
    (begun,) = copies.all()
    assert not begun.complete and begun.size_bytes > 4 * KIB


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"revisions": 3}', "{" * 9_999, "x" * 99_999])
def test_a_description_that_is_none_is_no_copy(copies: Copies, text: str) -> None:
    made(copies, "x/y")
    copies.place("x/y", A, ".json").write_text(text)
    assert copies.find("x/y", A) is None


def test_a_revision_names_the_copy_that_was_pulled_last(copies: Copies) -> None:
    made(copies, "x/y", A)
    made(copies, "x/y", B)
    found = copies.find("x/y", "main")
    assert found is not None and found.commit == B
    older = copies.find("x/y", A)
    assert older is not None and older.revisions == ()


def test_the_least_recently_used_copies_make_room(copies: Copies) -> None:
    for number, name in enumerate(("x/old", "x/older", "x/new")):
        made(copies, name, used=[20, 10, 30][number])
    copies.make_room(Copy("x/next", C, size_bytes=4 * KIB), 13 * KIB, 0)
    assert names(copies) == ["x/new", "x/next", "x/old"]


def test_a_copy_in_use_stays_and_the_next_one_goes(copies: Copies) -> None:
    made(copies, "x/old", used=10)
    made(copies, "x/new", used=20)
    (copies.uses / "job.1@node-1").write_text(f"x--old/{A}\nx--other/{B}")
    copies.make_room(Copy("x/next", C, size_bytes=4 * KIB), 8 * KIB, 0)
    assert copies.find("x/old", "main") is not None and copies.find("x/new", "main") is None
    with pytest.raises(PullError, match=r"8192 \(MUSTER_PULLED_BYTES\); what running jobs"):
        copies.make_room(Copy("x/more", C, size_bytes=5 * KIB), 8 * KIB, 0)
    assert copies.find("x/old", "main") is not None


def test_a_copy_is_removed_unless_it_is_in_use_or_being_made(copies: Copies) -> None:
    copy = made(copies, "x/y")
    note = copies.uses / "job.1@node-1"
    note.write_text(copy.name)
    assert copies.remove(copy) == "a job or a model uses it"
    assert copies.find("x/y", "main") is not None
    note.unlink()
    with copies.locked("x/y"):
        assert copies.remove(copy) == "a pull of the repository is running"
    assert copies.remove(copy) == "" and not copies.place("x/y", A).exists()
    assert copies.all() == []


def test_the_bytes_of_a_copy_that_is_being_made_count_from_its_start(copies: Copies) -> None:
    with copies.locked("x/one"):
        copies.make_room(Copy("x/one", A, size_bytes=6 * KIB), 10 * KIB, 0)
        with pytest.raises(PullError, match="MUSTER_PULLED_BYTES"):
            copies.make_room(Copy("x/two", B, size_bytes=6 * KIB), 10 * KIB, 0)
    copies.make_room(Copy("x/two", B, size_bytes=6 * KIB), 10 * KIB, 0)
    assert names(copies) == ["x/one", "x/two"]


def test_a_full_disk_is_no_place_for_a_copy(copies: Copies) -> None:
    with pytest.raises(PullError, match="the disk has"):
        copies.make_room(Copy("x/y", A, size_bytes=KIB), 0, 1 << 60)


def test_the_second_holder_of_a_lock_waits_for_the_first(tmp_path: Path) -> None:
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with lock_of(tmp_path / "lock", waits=True) as is_mine:
            assert is_mine
            held.set()
            done.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    with lock_of(tmp_path / "lock", waits=False) as is_mine:
        assert not is_mine
    done.set()
    with lock_of(tmp_path / "lock", waits=True) as is_mine:
        assert is_mine
    thread.join()


def test_folders_that_are_no_copies_are_not_listed(copies: Copies) -> None:
    (copies.folder / "x--y" / "not-a-commit").mkdir(parents=True)
    (copies.folder / ".from-peer-1").mkdir()
    (copies.folder / "x--y" / f"{A}.json").write_text(json.dumps({"revisions": []}))
    assert [copy.complete for copy in copies.all()] == [False]
