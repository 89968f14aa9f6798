"""The walk by descriptors visits each entry once, a folder after its entries.

A folder that moves during the walk ends it or raises.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from libs.common.safety.folder_walk import Found, opened_up, remove_tree, size_of, walk


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[int]:
    """Create a/b/{x,y}, a/z, and a link to a place outside."""
    (tmp_path / "top" / "a" / "b").mkdir(parents=True)
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"1234")
    for name in ("a/b/x", "a/b/y", "a/z"):
        (tmp_path / "top" / name).write_bytes(b"1")
    (tmp_path / "top" / "link").symlink_to(tmp_path / "outside")
    top = os.open(tmp_path / "top", os.O_RDONLY)
    yield top
    os.close(top)


def names(found: Iterator[Found]) -> list[str]:
    return [each.name for each in found]


def test_the_walk_visits_contents_before_their_folder_and_follows_no_link(tree: int) -> None:
    visited = names(walk(tree, strict=True))
    assert sorted(visited) == ["a", "b", "link", "x", "y", "z"]
    assert visited.index("b") > max(visited.index("x"), visited.index("y"))
    assert visited.index("a") > max(visited.index("b"), visited.index("z"))


def test_walk_never_leaves_a_moved_folder_through_its_parent(tree: int, tmp_path: Path) -> None:
    def moved(strict: bool) -> list[str]:
        seen = []
        for found in walk(tree, strict=strict):
            seen.append(found.name)
            if found.name in "xy" and (tmp_path / "top" / "a" / "b").exists():
                (tmp_path / "top" / "a" / "b").rename(tmp_path / "outside" / "b")
        return seen

    assert not {"b", "a", "secret"} & set(moved(strict=False))
    (tmp_path / "outside" / "b").rename(tmp_path / "top" / "a" / "b")
    with pytest.raises(OSError, match="moved during the walk"):
        moved(strict=True)


def test_vanished_entries_are_skipped_unless_the_walk_is_strict(tree: int, tmp_path: Path) -> None:
    def without_the_rest(strict: bool) -> int:
        count = 0
        for found in walk(tree, strict=strict):
            count += 1
            for name in ("x", "y"):
                if found.name in "xy":
                    (tmp_path / "top" / "a" / "b" / name).unlink(missing_ok=True)
        return count

    assert without_the_rest(strict=False) == 5
    for name in ("x", "y"):
        (tmp_path / "top" / "a" / "b" / name).write_bytes(b"")
    with pytest.raises(FileNotFoundError):
        without_the_rest(strict=True)


def test_the_size_leaves_out_holes_and_counts_a_file_with_two_names_once(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "full").write_bytes(b"x" * 100_000)
    once = size_of(tmp_path)
    assert 100_000 <= once < 1 << 20
    os.link(tmp_path / "full", tmp_path / "again")
    assert size_of(tmp_path) == once


def test_the_size_counts_blocks_of_files_and_links_but_not_what_a_link_names(
    tree: int, tmp_path: Path
) -> None:
    taken = {
        path.name: path.lstat().st_blocks * 512
        for path in (tmp_path / "top").rglob("*")
        if path.is_symlink() or path.is_file()
    }
    assert size_of(tmp_path / "top") == sum(taken.values()) > 0
    assert size_of(tmp_path / "top", leave_out="z") == sum(taken.values()) - taken["z"]
    assert size_of(tmp_path / "gone") == size_of(tmp_path / "top" / "link") == 0


def test_removal_takes_the_link_and_leaves_its_target(tree: int, tmp_path: Path) -> None:
    assert remove_tree(tmp_path / "top")
    assert not (tmp_path / "top").exists()
    assert (tmp_path / "outside" / "secret").read_bytes() == b"1234"
    (tmp_path / "link").symlink_to(tmp_path / "outside")
    assert (
        remove_tree(tmp_path / "link")
        and remove_tree(tmp_path / "gone")
        and remove_tree(tmp_path / "gone" / "deeper")
    )
    assert (tmp_path / "outside").exists() and not (tmp_path / "link").is_symlink()


def test_a_folder_without_rights_is_opened_up_and_a_link_is_not(tmp_path: Path) -> None:
    for name in ("closed", "other"):
        (tmp_path / name).mkdir(mode=0o500)
        (tmp_path / name).chmod(0o500)
    (tmp_path / "link").symlink_to(tmp_path / "other")
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        os.close(opened_up("closed", folder))
        with pytest.raises(NotADirectoryError):
            opened_up("link", folder)
        with pytest.raises(FileNotFoundError):
            opened_up("gone", folder)
    finally:
        os.close(folder)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("closed", "other")] == [
        0o700,
        0o500,
    ]
