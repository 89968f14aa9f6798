"""Names of repositories and revisions, and the list of files that a hub gives: all checked.

Pure. A hub is not trusted with the node: a path that leads out of the copy, a size or a hash that
is none, and lists beyond the bounds are refused. Tests: tests/unit/test_pull_listing.py.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from libs.job.pulling.errors import PullError

# Hashes: SHA-256 of the content, or SHA-1 of the content as a git blob.
SHA256: Final = "sha256"
GIT: Final = "git"
FILES_MAX: Final = 10_000
SIZE_MAX: Final = 1 << 50
PATH_BYTES_MAX: Final = 1_024
NAME_BYTES_MAX: Final = 255
DEPTH_MAX: Final = 32
MAIN: Final = "main"
# The list of a copy's files lies in the copy itself.
LIST_NAME: Final = ".muster.json"
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_REPOSITORY: Final = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?"
)
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,127}")
_DIGESTS: Final = {SHA256: re.compile(r"[0-9a-f]{64}"), GIT: COMMIT}
SHOWN: Final = 96


class Listed(NamedTuple):
    """One file of a repository. `digest` is its hash by `algorithm`."""

    path: str
    size_bytes: int
    algorithm: str
    digest: str


def check_repository(name: str) -> str:
    """Return the name of a repository. Raises PullError."""
    # `folder_of` must be reversible: so the owner does not end with a hyphen.
    if not _REPOSITORY.fullmatch(name) or ".." in name or "--" in name or "-/" in name:
        raise PullError(
            f"{name[:SHOWN]!r} is not the name of a repository: give OWNER/NAME, such as "
            "Qwen/Qwen2.5-7B"
        )
    return name


def check_revision(revision: str) -> str:
    """Return a branch, tag or commit. Raises PullError."""
    if not _REVISION.fullmatch(revision) or ".." in revision:
        raise PullError(
            f"{revision[:SHOWN]!r} is not a revision: give a branch, a tag, or a commit of 40 "
            "hexadecimal digits"
        )
    return revision


def reference_of(text: str) -> tuple[str, str]:
    """Return the repository and the revision of REPOSITORY[@REVISION]. Raises PullError."""
    name, at, revision = text.partition("@")
    return check_repository(name), check_revision(revision if at else MAIN)


def folder_of(repository: str) -> str:
    """Return the folder name of a repository; no two have the same one."""
    return repository.replace("/", "--")


def commit_of(value: object, revision: str) -> str:
    """Return the commit in the hub's description of a revision. Raises PullError."""
    found = value.get("sha") if isinstance(value, Mapping) else None
    if not isinstance(found, str) or not COMMIT.fullmatch(found):
        raise PullError(
            f"the hub names no commit of revision {revision} ({_shown(found)}): check that the "
            "address is one of a hub (MUSTER_HUB, --hub)"
        )
    if COMMIT.fullmatch(revision) and found != revision:
        raise PullError(f"the hub answers commit {found} for {revision}: it must be the same")
    return found


def files_of(entries: Iterable[object]) -> list[Listed]:
    """Return the files of a hub's list of a tree, sorted by path. Raises PullError."""
    files: dict[str, Listed] = {}
    for entry in entries:
        if not isinstance(entry, Mapping):
            raise PullError(f"the hub's list has an entry that is no object: {_shown(entry)}")
        if entry.get("type") == "directory":
            continue
        file = _file_of(entry)
        if file.path in files:
            raise PullError(f"the hub lists {file.path[:SHOWN]!r} twice")
        files[file.path] = file
        if len(files) > FILES_MAX:
            raise PullError(f"the repository has more than {FILES_MAX} files")
    for path in files:
        above = path.rpartition("/")[0]
        while above:
            if above in files:
                raise PullError(f"the hub lists {above[:SHOWN]!r} both as a file and as a folder")
            above = above.rpartition("/")[0]
    return [files[path] for path in sorted(files)]


def _file_of(entry: Mapping[str, object]) -> Listed:
    path, size, large = entry.get("path"), entry.get("size"), entry.get("lfs")
    if entry.get("type") != "file" or not isinstance(path, str) or not is_below(path):
        raise PullError(
            f"the hub lists {_shown(path)} ({_shown(entry.get('type'))}): only files and folders "
            "below the copy are accepted, with plain names"
        )
    algorithm, digest = GIT, entry.get("oid")
    if large is not None:
        if not isinstance(large, Mapping):
            raise PullError(f"the hub lists {path[:SHOWN]!r} without its SHA-256")
        algorithm, digest, size = SHA256, large.get("oid"), large.get("size", size)
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= SIZE_MAX:
        raise PullError(f"the hub lists {path[:SHOWN]!r} with the size {_shown(size)}")
    if not isinstance(digest, str) or not _DIGESTS[algorithm].fullmatch(digest):
        raise PullError(f"the hub lists {path[:SHOWN]!r} with the hash {_shown(digest)}")
    return Listed(path, size, algorithm, digest)


def is_below(path: str) -> bool:
    """Return whether a path is relative, stays below its folder, and has plain names."""
    parts = path.split("/")
    return (
        path != LIST_NAME
        and len(path.encode(errors="replace")) <= PATH_BYTES_MAX
        and len(parts) <= DEPTH_MAX
        and all(_is_plain(part) for part in parts)
    )


def _is_plain(name: str) -> bool:
    return (
        name not in ("", ".", "..")
        and name.isprintable()
        and "\\" not in name
        and len(name.encode(errors="replace")) <= NAME_BYTES_MAX
    )


def chosen(files: Sequence[Listed], patterns: Sequence[str]) -> list[Listed]:
    """Return the files that match one of the patterns; all files without patterns.

    Raises PullError for a pattern that matches none.
    """
    if not patterns:
        return list(files)
    for pattern in patterns:
        if not any(fnmatchcase(file.path, pattern) for file in files):
            raise PullError(
                f"--include {pattern[:SHOWN]!r} matches no file of the repository; it has "
                f"{', '.join(file.path for file in files[:8])[: 4 * SHOWN] or 'no files'}"
            )
    return [file for file in files if any(fnmatchcase(file.path, each) for each in patterns)]


def _shown(value: object) -> str:
    return repr(value)[:SHOWN]
