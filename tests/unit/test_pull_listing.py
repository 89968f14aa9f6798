"""The names and lists that a pull accepts from users and from hubs."""

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libs.job.pulling import listing
from libs.job.pulling.errors import PullError
from libs.job.pulling.listing import Listed

SHA1, SHA256 = "a" * 40, "b" * 64


def entry(path: Any, **more: Any) -> dict[str, Any]:
    return {"type": "file", "path": path, "size": 3, "oid": SHA1, **more}


@pytest.mark.parametrize("name", ["gpt2", "Qwen/Qwen2.5-7B", "a/b_c.d"])
def test_a_repository_has_an_owner_and_a_name_or_a_name(name: str) -> None:
    assert listing.check_repository(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "a/b/c",
        "../a",
        "a/..",
        "/etc",
        "a--b/c",
        "a/.b",
        "a b",
        "é/b",
        "a/b\n",
        "x" * 97,
        "a-/b",
    ],
)
def test_other_names_of_repositories_are_refused(name: str) -> None:
    with pytest.raises(PullError, match="not the name of a repository"):
        listing.check_repository(name)


def test_no_two_repositories_share_a_folder() -> None:
    assert listing.folder_of("Qwen/Qwen2.5-7B") == "Qwen--Qwen2.5-7B"


@given(st.from_regex(r"[ab][a.-]{0,3}(/[ab][b-]{0,3})?", fullmatch=True))
def test_the_folder_of_an_accepted_repository_names_it(name: str) -> None:
    with contextlib.suppress(PullError):
        assert listing.folder_of(listing.check_repository(name)).replace("--", "/", 1) == name


def test_a_reference_has_the_revision_main_unless_it_names_one() -> None:
    assert listing.reference_of("a/b") == ("a/b", "main")
    assert listing.reference_of("a/b@refs/pr/1") == ("a/b", "refs/pr/1")
    for bad in ("a/b@", "a/b@../x", "a/b@-x"):
        with pytest.raises(PullError, match="is not a revision"):
            listing.reference_of(bad)


def test_the_commit_is_taken_from_the_hub_s_description() -> None:
    assert listing.commit_of({"sha": SHA1}, "main") == SHA1
    for bad in ({}, [], {"sha": 3}, {"sha": "../x"}, {"sha": SHA256}):
        with pytest.raises(PullError, match="names no commit"):
            listing.commit_of(bad, "main")
    with pytest.raises(PullError, match="must be the same"):
        listing.commit_of({"sha": SHA1}, "c" * 40)


def test_a_file_has_a_sha256_if_it_is_large_and_a_git_hash_otherwise() -> None:
    large = entry("w.bin", lfs={"oid": SHA256, "size": 9})
    folder = {"type": "directory", "path": "sub"}
    found = listing.files_of([large, folder, entry("sub/config.json")])
    assert found == [
        Listed("sub/config.json", 3, "git", SHA1),
        Listed("w.bin", 9, "sha256", SHA256),
    ]


@pytest.mark.parametrize(
    "path",
    [
        *("", "/etc/passwd", "..", "a/../b", "a//b", "./a", "a/", "a\\b", "a\0b", "a\nb", "\ud800"),
        *(".muster.json", "x" * 256, "/".join("x" * 33), "/".join(["x" * 200] * 6), 3, None),
    ],
)
def test_a_path_that_leaves_the_copy_or_is_not_plain_is_refused(path: Any) -> None:
    with pytest.raises(PullError, match="plain names"):
        listing.files_of([entry(path)])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("text", "no object"),
        (entry("a", type="symlink"), "only files and folders"),
        (entry("a", size=-1), "with the size"),
        (entry("a", size=True), "with the size"),
        (entry("a", size="3"), "with the size"),
        (entry("a", size=1 << 60), "with the size"),
        (entry("a", oid=None), "with the hash"),
        (entry("a", oid=SHA256), "with the hash"),
        (entry("a", lfs="x"), "without its SHA-256"),
        (entry("a", lfs={"oid": SHA1}), "with the hash"),
    ],
)
def test_an_entry_that_is_not_valid_is_refused(wrong: Any, words: str) -> None:
    with pytest.raises(PullError, match=words):
        listing.files_of([wrong])


def test_a_file_that_is_listed_twice_or_is_also_a_folder_is_refused() -> None:
    with pytest.raises(PullError, match="twice"):
        listing.files_of([entry("a"), entry("a")])
    with pytest.raises(PullError, match="both as a file and as a folder"):
        listing.files_of([entry("a/b/c"), entry("a")])


def test_the_number_of_files_is_bounded() -> None:
    with pytest.raises(PullError, match="more than"):
        listing.files_of(entry(f"f{number}") for number in range(listing.FILES_MAX + 1))


def test_patterns_choose_files_and_one_that_matches_none_is_refused() -> None:
    files = listing.files_of([entry("a.json"), entry("b.bin"), entry("sub/c.json")])
    assert listing.chosen(files, []) == files
    assert [file.path for file in listing.chosen(files, ["*.json"])] == ["a.json", "sub/c.json"]
    with pytest.raises(PullError, match="matches no file"):
        listing.chosen(files, ["*.json", "*.gguf"])
    with pytest.raises(PullError, match="no files"):
        listing.chosen([], ["*"])


@given(st.text(alphabet="ab./\\\0", max_size=12))
def test_an_accepted_path_never_leaves_its_folder(path: str) -> None:
    depth = 0
    if listing.is_below(path):
        for part in path.split("/"):
            assert part not in ("", ".", "..")
            depth += 1
        assert depth and not path.startswith("/")
