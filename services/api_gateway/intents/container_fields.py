"""Fields of a request about the container of a job: `image` and `container`.

Pure. Only the form of a value is checked here. Each node's administrator decides what the node
allows (`services/node_agent/runtimes/`), except for the whole file system of a node, which no job
gets. Tests: tests/unit/test_container_fields.py.
"""

import posixpath
import re
from collections.abc import Mapping
from typing import Any, Final

from libs.common.container_spec import CACHE_VARIABLES, ContainerSpec, Mount, cache_path
from libs.common.errors import Refused
from libs.common.model import BYTES_MAX, JobSpec
from libs.common.quantities import bytes_of
from services.api_gateway.intents.fields import check_known, check_range, names_of
from services.api_gateway.secrets import plain_secrets

IMAGE: Final = re.compile(
    r"[a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*(:[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
USER: Final = re.compile(
    r"([a-z_][a-z0-9_-]{0,31}|[0-9]{1,10})(:[a-z_][a-z0-9_-]{0,31}|:[0-9]{1,10})?"
)
CACHE: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
IMAGE_CHARS_MAX: Final = 384
PATH_CHARS_MAX: Final = 1_024
MOUNTS_MAX: Final = 32
CACHES_MAX: Final = 8
ID_MAX: Final = (1 << 32) - 2
ID_DIGITS: Final = 10
SHM_BYTES_MIN: Final = 64 << 10
# Targets that are the container's own; mounts there would hide what keeps it in.
OWN: Final = ("/proc", "/sys", "/dev")
OWN_FILES: Final = "/.muster-"
FIELDS: Final = names_of(ContainerSpec)
EXAMPLE: Final = "give for example /data/sets"


def take(values: dict[str, Any], before: ContainerSpec | None = None) -> None:
    """Read `container` of a request. A job that names an image always has one from now on.

    `before` is what a redeployed model has; a model that loses its image loses this too. Raises
    Refused.
    """
    given = values.get("container")
    if isinstance(given, dict):
        check_known(given, FIELDS, "field of container")
        if isinstance(given.get("shm_bytes"), str):
            values["container"] = {**given, "shm_bytes": _size(given["shm_bytes"])}
    elif given is not None:
        raise Refused('container: not an object: give for example {"shm_bytes": 1073741824}')
    elif "image" in values or "container" in values:
        values["container"] = (before or ContainerSpec()) if values.get("image") else None


def _size(text: str) -> int:
    try:
        return bytes_of(text)
    except ValueError as error:
        raise Refused(f"container.shm_bytes: {error}") from None


def check(spec: JobSpec) -> None:
    """Check the image of a job and what it asks of its container. Raises Refused."""
    if spec.image and (len(spec.image) > IMAGE_CHARS_MAX or not IMAGE.fullmatch(spec.image)):
        raise Refused(
            f"image: {spec.image[:64]!r} is not an image name: write for example "
            "registry.example/team/train:1.2"
        )
    container = spec.container
    if container is None:
        return
    if not spec.image:
        raise Refused(
            "container: the job has no image, so it runs without a container: give an image, or "
            "leave container out"
        )
    _check_entrypoint(container)
    _check_user(container.user)
    if container.workdir and not _is_plain_path(container.workdir):
        raise Refused(
            f"container.workdir: {container.workdir[:64]!r} is not an absolute path without . and "
            "..: give for example /workspace"
        )
    if container.shm_bytes:
        check_range("container.shm_bytes", container.shm_bytes, SHM_BYTES_MIN, BYTES_MAX)
    _check_count("mounts and scratch", len(container.mounts) + len(container.scratch), MOUNTS_MAX)
    _check_count("caches", len(container.caches), CACHES_MAX)
    for name in container.caches:
        if not CACHE.fullmatch(name):
            raise Refused(
                f"container.caches: {name[:64]!r} is not a name: use small letters, digits and "
                f"._- (at most 63), for example {next(iter(CACHE_VARIABLES))}"
            )
    for mount in container.mounts:
        _check_source(mount)
    for scratch in container.scratch:
        check_range("container.scratch.size_bytes", scratch.size_bytes, 0, BYTES_MAX)
    _check_targets(container)


def may_be_empty(values: Mapping[str, Any]) -> bool:
    """Return whether the request may leave the command to its image."""
    return bool(values.get("image")) and values.get("container") is not None


def _check_count(what: str, count: int, most: int) -> None:
    if count > most:
        raise Refused(f"container: {count} {what} are too many: give at most {most}")


def _check_entrypoint(container: ContainerSpec) -> None:
    words = container.entrypoint or ()
    if any(not word for word in words[:1]) or any("\0" in word for word in words):
        raise Refused(
            "container.entrypoint: the first word is empty, or a word contains a NUL byte: give "
            'a list of words, for example ["python"]; an empty list for no entry point'
        )
    if what := plain_secrets.in_command(words):
        raise Refused(
            f"container.entrypoint: {what} looks like a secret, and the log keeps it for ever: "
            "store it with `muster secret set NAME` and submit with --secret NAME=VARIABLE"
        )


def _check_user(user: str) -> None:
    if not user:
        return
    numbers = [part for part in user.split(":") if part.isdecimal()]
    if not USER.fullmatch(user) or any(
        len(part) > ID_DIGITS or int(part) > ID_MAX for part in numbers
    ):
        raise Refused(
            f"container.user: {user[:64]!r} is not valid: write UID, UID:GID or a name of the "
            "image, for example 1000:1000"
        )


def _check_source(mount: Mount) -> None:
    where = f"container.mounts: {mount.source[:64]!r}"
    if mount.source == "/":
        raise Refused(
            f"{where} is the whole file system of the node, with the files of all tenants and of "
            "the node itself, and no job gets it: mount the directory that the job needs"
        )
    if not _is_plain_path(mount.source):
        raise Refused(f"{where} is not an absolute path without . and ..: {EXAMPLE}")


def _check_targets(container: ContainerSpec) -> None:
    """Check where the container sees its mounts, scratch directories and caches."""
    targets = [
        *(mount.target for mount in container.mounts),
        *(scratch.target for scratch in container.scratch),
        *(cache_path(name) for name in container.caches),
    ]
    for target in targets:
        where = f"container: the target {target[:64]!r}"
        if target == "/" or not _is_plain_path(target):
            raise Refused(f"{where} is not an absolute path below / without . and ..: {EXAMPLE}")
        if target.startswith(OWN_FILES) or any(
            target == own or target.startswith(f"{own}/") for own in OWN
        ):
            raise Refused(
                f"{where} belongs to the container itself: choose another one; the size of "
                "/dev/shm is shm_bytes (--shm-size)"
            )
    if doubled := next((each for each in targets if targets.count(each) > 1), ""):
        raise Refused(f"container: the target {doubled[:64]!r} is given twice: give it once")


def _is_plain_path(path: str) -> bool:
    return (
        path.startswith("/")
        and not path.startswith("//")
        and "\0" not in path
        and len(path) <= PATH_CHARS_MAX
        and posixpath.normpath(path) == path
    )
