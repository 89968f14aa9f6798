"""LoRA adapters of models: which a deployment allows, and one that was added.

Pure. Part of the log's format: the structs only gain fields with defaults. Tests:
tests/unit/test_adapters.py.
"""

from typing import Final

import msgspec

# Values of `api`: how the gateway loads an adapter at a replica's server. With NONE the server has
# all adapters by itself.
VLLM: Final = "vllm"
SGLANG: Final = "sglang"
NONE: Final = "none"
APIS: Final = (VLLM, SGLANG, NONE)
RESIDENT_MAX: Final = 8


class AdapterRules(msgspec.Struct, frozen=True, kw_only=True):
    """The rules for a model's adapters.

    The path of each one is below the folder `root`, as the replicas' server sees it. `api` says how
    the gateway loads it. A replica has at most `resident_max` of them at one time.
    """

    root: str = ""
    api: str = VLLM
    resident_max: int = RESIDENT_MAX


class Adapter(msgspec.Struct, frozen=True):
    """An adapter of a model, with the sequence and the time of the fact that set its path."""

    path: str
    seq: int
    at_ns: int = 0
    user: str = ""


def is_below(path: str, root: str) -> bool:
    """Return whether the path is inside the folder `root`, as both are written.

    A path with an empty, `.` or `..` part is not, nor is the root itself.
    """
    if not root or not path.startswith("/"):
        return False
    inside = path.removeprefix(root.rstrip("/") + "/")
    return inside != path and is_plain(path)


def is_plain(path: str) -> bool:
    """Return whether an absolute path has no empty, `.` or `..` part."""
    return all(part not in ("", ".", "..") for part in path.removeprefix("/").split("/"))
