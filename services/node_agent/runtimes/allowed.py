"""The rights that a node's administrator gives containers: mount directories, and use other users.

Pure. MUSTER_CONTAINER_MOUNTS lists the directories, MUSTER_CONTAINER_USERS the ids of users. Both
are empty by default. runner.py follows the path below a directory without links. Tests:
tests/unit/test_container_allowed.py.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from libs.common.container_spec import Mount
from libs.common.errors import Refused
from services.node_agent.runtimes.faults import NoContainer

ROOT_ID: Final = 0
ID_MAX: Final = (1 << 32) - 2
READ_ONLY: Final = ":ro"
_RANGE: Final = re.compile(r"(\d{1,10})(?:-(\d{1,10}))?")
_NUMBERS: Final = re.compile(r"(\d{1,10})(?::(\d{1,10}))?")


# Ids of users or groups, first and last.
Range = tuple[int, int]


class Root(NamedTuple):
    """A directory below which jobs may mount."""

    path: str
    read_only: bool


class Found(NamedTuple):
    """The position of a mount: its root, and the names below it."""

    root: str
    names: tuple[str, ...]


class Allowed(NamedTuple):
    """The two settings of a node."""

    roots: tuple[Root, ...] = ()
    users: tuple[Range, ...] = ()


NOTHING: Final = Allowed()


def allowed_of(mounts: str, users: str) -> Allowed:
    """Return what the settings allow. Raises Refused for a text that is not valid."""
    return Allowed(
        tuple(_root(word) for word in _words(mounts)), tuple(_range(word) for word in _words(users))
    )


def _words(text: str) -> list[str]:
    return [word for part in text.split(",") if (word := part.strip())]


def _root(word: str) -> Root:
    path = word.removesuffix(READ_ONLY)
    if not path.startswith("/") or posixpath.normpath(path) in ("/", "//"):
        raise Refused(
            f"MUSTER_CONTAINER_MOUNTS: {word!r} is not valid: give absolute directories other "
            "than / with commas between them, such as /data,/models:ro"
        )
    return Root(posixpath.normpath(path), word.endswith(READ_ONLY))


def _range(word: str) -> Range:
    match = _RANGE.fullmatch(word)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (ROOT_ID, ROOT_ID)
    if not ROOT_ID < first <= last <= ID_MAX:
        raise Refused(
            f"MUSTER_CONTAINER_USERS: {word!r} is not valid: give ids from 1 on, or ranges of "
            "them, with commas between them, such as 1000-1999,65534"
        )
    return first, last


def place_of(mount: Mount, roots: Sequence[Root]) -> Found:
    """Return where the source of a mount lies below the node's roots.

    Raises NoContainer if it lies below none, or only below one that is read-only.
    """
    under = [root for root in roots if _is_below(mount.source, root.path)]
    if not under:
        raise NoContainer(
            f"mount {mount.source}: this node lets jobs mount {_named(roots)} "
            "(MUSTER_CONTAINER_MOUNTS): ask its administrator for this one, or choose another "
            "node with --nodelist or --node-label"
        )
    root = max(under, key=lambda each: (not each.read_only or mount.read_only, len(each.path)))
    if root.read_only and not mount.read_only:
        raise NoContainer(
            f"mount {mount.source}: this node lets jobs only read {root.path}: add :ro to the mount"
        )
    rest = posixpath.relpath(mount.source, root.path)
    return Found(root.path, tuple(rest.split("/")) if rest != "." else ())


def mount_of(mount: Mount, roots: Sequence[Root]) -> dict[str, Any]:
    """Return a mount of the job for runner.py. Raises NoContainer as `place_of`."""
    place = place_of(mount, roots)
    return {
        "root": place.root,
        "names": place.names,
        "target": mount.target,
        "read_only": mount.read_only,
    }


def working_directory(path: str, is_own: bool, roots: Sequence[Root]) -> dict[str, Any]:
    """Return the mount of a working directory that the node may have, for runner.py.

    `is_own`: the container runs as the job's own user, and any directory will do that this user may
    enter. Another user may own what the job's user can only see, such as the home of a person. Then
    the directory must lie where mounts are allowed. `refusal` is the reason if it does not.
    """
    if is_own:
        mount = {"root": path, "names": (), "target": path, "read_only": False}
        return {**mount, "optional": True, "refusal": ""}
    plain = posixpath.normpath(path)
    try:
        mount = mount_of(Mount(plain, path), roots)
    except NoContainer as error:
        mount = {"root": path, "names": (), "target": path, "read_only": True}
        refusal = f"the container runs as another user than the job: {error}"
        return {**mount, "optional": True, "refusal": refusal}
    return {**mount, "optional": True, "refusal": ""}


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}/")


def _named(roots: Iterable[Root]) -> str:
    words = [f"{root.path}{READ_ONLY if root.read_only else ''}" for root in roots]
    return f"only what lies in {', '.join(words)}" if words else "nothing"


def user_of(
    wanted: str,
    image: str,
    ids: Sequence[int],
    users: Sequence[Range],
    taken: Sequence[Range] = (),
) -> str:
    """Return the user of a container as UID:GID, where jobs have a Unix user of their own.

    `wanted` is the job's own request, `image` the image's user, `ids` the job's Unix user and its
    groups, `taken` the ids that jobs run under: of those, only the job's own. Names are not
    accepted, because the image says which id a name has. Raises NoContainer for a request that the
    node does not allow.
    """
    own = f"{ids[0]}:{ids[1]}"
    found = _numeric(wanted or image)
    is_taken = found is not None and any(
        number not in ids and _within(taken)(number) for number in found
    )
    is_allowed = found is not None and all(map(_within(users), found)) and not is_taken
    if found is not None and (found == (ids[0], ids[1]) or is_allowed):
        return f"{found[0]}:{found[1]}"
    if wanted and wanted != str(ids[0]):
        raise NoContainer(
            f"user {wanted}: on this node the job runs as {own}, and containers may use "
            f"{_ids(users)} (MUSTER_CONTAINER_USERS), by number, never an id "
            "of other jobs and never root: leave --user out, or ask the node's administrator"
        )
    return own


def _numeric(text: str) -> tuple[int, int] | None:
    """Return user and group of UID[:GID]; the group is the user's number if it is left out."""
    match = _NUMBERS.fullmatch(text)
    return (int(match[1]), int(match[2] or match[1])) if match else None


def _within(users: Sequence[Range]) -> Callable[[int], bool]:
    return lambda number: any(first <= number <= last for first, last in users)


def _ids(users: Iterable[Range]) -> str:
    words = [f"{first}-{last}" if last > first else f"{first}" for first, last in users]
    return f"the ids {', '.join(words)}" if words else "no other user"
