"""The options of a job's container beside the image, as JobSpec and ModelSpec record them.

Pure. These structs are part of the log's format: they only gain fields with defaults. The gateway
checks the values (`intents/container_fields.py`); the agent decides what its node allows
(`services/node_agent/runtimes/`).
"""

import re
from typing import Final

import msgspec

# Directories of known programs: a cache of this name sets the variable, unless the job sets it.
CACHE_VARIABLES: Final = {
    "huggingface": "HF_HOME",
    "torch": "TORCH_HOME",
    "triton": "TRITON_CACHE_DIR",
    "vllm": "VLLM_CACHE_ROOT",
    "pip": "PIP_CACHE_DIR",
    "uv": "UV_CACHE_DIR",
}
# Where a container finds its caches, one directory each.
CACHES_AT: Final = "/cache"

# Where engines look for an image whose name has no registry, under each of its names.
DEFAULT_REGISTRY: Final = "docker.io"
DEFAULT_ALIAS: Final = "index.docker.io"
# Where that registry has the images whose names have one part.
OFFICIAL: Final = "library"
REGISTRY_PREFIX: Final = "registry."
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Mount(msgspec.Struct, frozen=True):
    """A file or directory of the node, `source`, that the container sees at `target`."""

    source: str
    target: str
    read_only: bool = False


class Scratch(msgspec.Struct, frozen=True):
    """An empty directory at `target`, which ends with the attempt.

    In `memory` it has at most `size_bytes` (0: no bound of its own); on the node's disk it has no
    bound.
    """

    target: str
    size_bytes: int = 0
    memory: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the container of a job with an image.

    `entrypoint` replaces the image's entry point (and its default arguments); None: the image's
    own, to which the job's command is given as arguments. `user` is UID[:GID] or a name of the
    image; empty: the image's own where the node allows that. `workdir` is the working directory in
    the container; empty: that of the job (JobSpec), else the image's. `shm_bytes` is the size of
    `/dev/shm`; 0: half of the job's memory. `caches` are directories of the tenant on each node,
    below `CACHES_AT`. Jobs with an image and without this struct are older than it: their command
    replaces the entry point.
    """

    entrypoint: tuple[str, ...] | None = None
    user: str = ""
    workdir: str = ""
    mounts: tuple[Mount, ...] = ()
    scratch: tuple[Scratch, ...] = ()
    caches: tuple[str, ...] = ()
    shm_bytes: int = 0


def registry_of(image: str) -> str:
    """Return the registry of an image, as engines read its name: `docker.io` if it names none."""
    first, slash, _ = image.partition("/")
    named = slash and ("." in first or ":" in first or first == "localhost")
    return first if named else DEFAULT_REGISTRY


def repository_of(image: str) -> str:
    """Return the repository of an image with its registry: `docker.io/library/busybox`."""
    path, slash, last = image.partition("@")[0].rpartition("/")
    path = f"{path}{slash}{last.partition(':')[0]}"
    registry = registry_of(path)
    rest = path.removeprefix(f"{registry}/")
    if registry in (DEFAULT_REGISTRY, DEFAULT_ALIAS):
        return f"{DEFAULT_REGISTRY}/{rest if '/' in rest else f'{OFFICIAL}/{rest}'}"
    return f"{registry}/{rest}"


def is_digest(text: str) -> bool:
    """Return whether a text is the digest of an image, as registries write it."""
    return _DIGEST.fullmatch(text) is not None


def pinned(image: str, digest: str) -> str:
    """Return the name of the image of this digest in the repository of an image."""
    path, slash, last = image.partition("@")[0].rpartition("/")
    return f"{path}{slash}{last.partition(':')[0]}@{digest}"


def registry_secret(host: str) -> str:
    """Return the name of a tenant's secret with its credentials for a registry, HOST[:PORT]."""
    return f"{REGISTRY_PREFIX}{host.replace(':', '_')}"


def cache_path(name: str) -> str:
    """Return where a container finds the cache of this name."""
    return f"{CACHES_AT}/{name}"
