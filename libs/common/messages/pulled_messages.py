"""Requests of a gateway about the copies of models that a node has pulled, and the answer. Pure."""

import msgspec


class PulledAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: list the copies of a tenant.

    With `remove`, remove the copies of this repository first, with `commit` only that one.
    """

    tenant: str
    remove: str = ""
    commit: str = ""


class PulledCopy(msgspec.Struct, frozen=True):
    """One copy of a model on a node.

    `revisions` are the names under which it was pulled, `include` the patterns of its files (none:
    all files). A copy that is not `complete` is being made, or was cut short. `used_ns` is the time
    of its last use, `path` its folder on the node, `job_id` the job that made it.
    """

    repository: str
    commit: str
    revisions: tuple[str, ...]
    size_bytes: int
    files: int
    complete: bool
    in_use: bool
    used_ns: int
    path: str
    include: tuple[str, ...] = ()
    job_id: str = ""


class PulledReport(msgspec.Struct, frozen=True):
    """agent -> gateway: the copies of the tenant that asked, or why they cannot be listed.

    `bound_bytes` is the bound of all of them (0: none). `removed` are the copies that are gone,
    `stays` says why others stay. `left_out` counts copies beyond the bound of one answer.
    """

    copies: tuple[PulledCopy, ...] = ()
    bound_bytes: int = 0
    removed: tuple[PulledCopy, ...] = ()
    stays: str = ""
    error: str = ""
    left_out: int = 0
