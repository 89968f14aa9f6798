"""Copies with the SHA-256 of every file, and the refusal of a wrong checkpoint."""

import os
from pathlib import Path
from random import Random

import pytest

from libs.common.errors import Refused
from libs.common.messages import KeepOrder
from libs.common.safety.folder_walk import remove_tree
from services.node_agent.resident import trees
from services.node_agent.resident.trees import Differs
from services.node_agent.resident.weights import HostWeights

TRIES = 100
SIZES = {"deep/two": 2_000, "one": 1_000}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "one").write_bytes(b"1" * 1_000)
    (folder / "deep" / "two").write_bytes(b"2" * 2_000)
    return folder


def test_files_are_listed_with_their_sizes(source: Path) -> None:
    os.symlink(source / "one", source / "link")
    os.mkfifo(source / "pipe")
    assert trees.listed(str(source), (), follow=False) == {"deep/two": 2_000, "one": 1_000}
    assert trees.listed(str(source), (), follow=True) == {
        "deep/two": 2_000,
        "link": 1_000,
        "one": 1_000,
    }


def test_a_folder_that_is_missing_or_has_too_many_files_is_refused(source: Path) -> None:
    with pytest.raises(Refused, match="cannot be read: No such file"):
        trees.listed(str(source / "none"), (), follow=True)
    with pytest.raises(Refused, match="more than 1 files"):
        trees.listed(str(source), (), follow=True, files_max=1)
    (source / "new\nline").write_bytes(b"")
    with pytest.raises(Refused, match="cannot be recorded"):
        trees.listed(str(source), (), follow=True)


def test_very_deep_folders_are_refused(source: Path) -> None:
    place = os.open(source, os.O_RDONLY)
    for _ in range(1_500):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)
    try:
        with pytest.raises(Refused, match=f"more than {trees.DEPTH_MAX} levels of folders"):
            trees.listed(str(source), (), follow=True)
    finally:
        assert remove_tree(source / "d")


def test_folder_with_too_many_entries_is_refused(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(10):
        (source / f"{number}").mkdir()
    monkeypatch.setattr(trees, "ENTRIES_MAX", 13)
    assert len(trees.listed(str(source), (), follow=True)) == 2
    (source / "10").mkdir()
    with pytest.raises(Refused, match="more than 13 files and folders"):
        trees.listed(str(source), (), follow=True)


def test_links_to_folders_are_left_out(source: Path) -> None:
    os.symlink(source, source / "deep" / "above")
    assert trees.listed(str(source), (), follow=True) == SIZES
    os.symlink("itself", source / "itself")
    assert trees.listed(str(source), (), follow=False) == SIZES


def test_refusal_of_a_name_that_is_not_utf8_can_be_recorded(source: Path) -> None:
    os.symlink(b"nowhere", os.fsencode(source) + b"/w\xff")
    with pytest.raises(Refused, match="cannot be read: No such file") as refused:
        trees.listed(str(source), (), follow=True)
    assert str(refused.value).startswith(f"{source}/w\\udcff cannot")
    os.rename(os.fsencode(source) + b"/w\xff", os.fsencode(source) + b"/deep/other")
    (source / "deep" / "other").unlink()
    (source / "deep").joinpath(os.fsdecode(b"n\xff")).touch()
    with pytest.raises(Refused, match="cannot be recorded") as refused:
        trees.listed(str(source), (), follow=True)
    str(refused.value).encode()


def test_a_copy_has_the_hashes_of_its_files(source: Path, tmp_path: Path) -> None:
    made = trees.copied(str(source), tmp_path / "to", SIZES, ())
    assert made == trees.hashes_of(tmp_path / "to", ["deep/two", "one", "missing"])
    again = trees.copied(str(source), tmp_path / "again", SIZES, (), made)
    assert trees.content_of(again) == trees.content_of(made)


def test_a_copy_stops_at_the_first_file_that_differs_or_is_missing(
    source: Path, tmp_path: Path
) -> None:
    made = trees.copied(str(source), tmp_path / "to", SIZES, ())
    with pytest.raises(Differs, match="two is recorded and not there"):
        trees.copied(str(source), tmp_path / "less", {"one": 1_000}, (), made)
    with pytest.raises(Differs, match="one has the SHA-256"):
        trees.copied(str(source), tmp_path / "other", {"one": 1_000}, (), made | {"one": "0" * 64})
    os.mkfifo(source / "pipe")
    with pytest.raises(Refused, match="is not a file"):
        trees.copied(str(source), tmp_path / "pipe", {"pipe": 0}, ())
    with pytest.raises(Refused, match="mem cannot be read: Input/output error"):
        trees.copied("/proc/self", tmp_path / "unread", {"mem": 10}, ())


def test_a_file_that_grows_or_shrinks_after_it_was_listed_is_not_copied_further(
    source: Path, tmp_path: Path
) -> None:
    """The room was found for the listed bytes: a sparse file costs its owner nothing."""
    sizes = trees.listed(str(source), (), follow=True)
    os.truncate(source / "one", 1 << 43)
    with pytest.raises(Differs, match="one had 1000 bytes when it was listed, and has more now"):
        trees.copied(str(source), tmp_path / "grown", sizes, ())
    assert (tmp_path / "grown" / "one").stat().st_size <= 1_000
    os.truncate(source / "one", 10)
    with pytest.raises(Differs, match="one had 1000 bytes when it was listed, and has 10 now"):
        trees.copied(str(source), tmp_path / "shrunk", sizes, ())


def order(source: Path, files: dict[str, str], granted: int = 1 << 20) -> KeepOrder:
    return KeepOrder(
        model="chat",
        tier="host",
        tenant="default",
        request=7,
        number=1,
        state="filling",
        granted=granted,
        weights=str(source),
        files=files,
    )


@pytest.fixture
def weights(tmp_path: Path) -> HostWeights:
    made = HostWeights(tmp_path / "memory")
    made.load()
    return made


def test_a_wrong_checkpoint_is_refused_in_every_try(source: Path, weights: HostWeights) -> None:
    """One bit of one file differs, each time another one; nothing of it stays in memory."""
    files = trees.hashes_of(source, ["deep/two", "one"])
    refused = 0
    for seed in range(TRIES):
        chance = Random(seed)
        path = source / chance.choice(list(files))
        right = path.read_bytes()
        place = chance.randrange(len(right))
        path.write_bytes(
            right[:place] + bytes([right[place] ^ (1 << chance.randrange(8))]) + right[place + 1 :]
        )
        with pytest.raises(Differs):
            weights.fill(order(source, files), ())
        refused += weights.path_of("default", "chat") == ""
        path.write_bytes(right)
    assert refused == TRIES
    assert [path.name for path in weights.root.iterdir() if path.is_dir()] == []


def test_the_right_checkpoint_is_given_and_survives_a_restart(
    source: Path, weights: HostWeights
) -> None:
    files = trees.hashes_of(source, ["deep/two", "one"])
    filled = weights.fill(order(source, {}), ())
    assert filled.files == files
    again = HostWeights(weights.root)
    again.load()
    assert again.verified(order(source, files)) == filled
    path = Path(again.path_of("default", "chat"))
    assert (path / "deep" / "two").read_bytes() == b"2" * 2_000
    again.remove("default", "chat")
    assert not path.exists() and again.verified(order(source, files)) is None


def test_weights_that_changed_in_memory_do_not_count(source: Path, weights: HostWeights) -> None:
    files = trees.hashes_of(source, ["deep/two", "one"])
    weights.fill(order(source, files), ())
    held = Path(weights.path_of("default", "chat")) / "one"
    held.chmod(0o644)
    held.write_bytes(b"x" * 1_000)
    again = HostWeights(weights.root)
    again.load()
    assert again.verified(order(source, files)) is None
    assert [path for path in weights.root.iterdir() if path.is_dir()] == []


def test_more_bytes_than_granted_are_refused(source: Path, weights: HostWeights) -> None:
    assert weights.measure(order(source, {}), ()) == 3_000
    with pytest.raises(Differs, match="has 3000 bytes now, and 2999 were granted"):
        weights.fill(order(source, {}, granted=2_999), ())
    (source / "one").unlink()
    (source / "deep" / "two").unlink()
    with pytest.raises(Refused, match="has no files"):
        weights.measure(order(source, {}), ())


def test_what_no_manifest_names_is_removed_at_the_start(tmp_path: Path) -> None:
    root = tmp_path / "memory"
    (root / "left").mkdir(parents=True)
    (root / "manifest.json").write_text("broken")
    made = HostWeights(root)
    made.load()
    assert made.known == {} and not (root / "left").exists()


def test_a_root_that_is_not_the_agents_own_is_not_used(source: Path, tmp_path: Path) -> None:
    """The tmpfs is open to every user: another one may have put a link there."""
    foreign = tmp_path / "foreign"
    (foreign / "kept").mkdir(parents=True)
    (tmp_path / "memory").symlink_to(foreign)
    made = HostWeights(tmp_path / "memory")
    made.load()
    with pytest.raises(Refused, match="belongs to another user"):
        made.fill(order(source, {}), ())
    assert [path.name for path in foreign.iterdir()] == ["kept"]


def test_nothing_is_created_before_weights_are_kept(source: Path, weights: HostWeights) -> None:
    assert not weights.root.exists()
    weights.fill(order(source, {}), ())
    assert weights.root.is_dir()
