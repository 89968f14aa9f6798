"""The log's servers as the API shows them, and whether one of them may be stopped now.

Pure. Each server tells its own state, so a server that says nothing is missing here; the others
name it, because they know which servers shall store a stream.
Tests: tests/unit/test_log_servers.py.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from libs.common.messages.server_messages import Replica, ServerStatus
from libs.common.replacement import GOOD, lack_of_space, losses

SILENT: Final = "silent"


class LogReplicaShown(msgspec.Struct):
    """One stream at one server: number of commits, bytes, first and last sequence.

    `leads`: this server is the stream's leader. `behind`: commits that another server has and this
    one does not have yet.
    """

    stream: str
    leads: bool
    commits: int
    bytes: int
    first: int
    last: int
    behind: int


class LogServerShown(msgspec.Struct):
    """One server. `health`: good, waits (for the other servers), lost (a write failed: it is
    restarted when its disk has room) or silent. `reasons` are its own words. `process_id` names
    its process; each start has another one.
    """

    name: str
    health: str
    reasons: list[str]
    process_id: str
    free_bytes: int
    streams: list[LogReplicaShown]


class BusShown(msgspec.Struct):
    """The log's servers. `faults` name what is not as it should be; empty: every server may be
    restarted, one at a time.
    """

    servers: list[LogServerShown]
    faults: list[str]


class ServerOrdered(msgspec.Struct):
    """An order to a server. `process_id` is the process that ends with it."""

    server: str
    order: str
    process_id: str


def bus_shown(told: Sequence[ServerStatus]) -> BusShown:
    """Return all servers, also those that told nothing."""
    known = {status.server: status for status in told}
    last = _last(told)
    shown = [_server(known[name], last) if name in known else _silent(name) for name in names(told)]
    return BusShown(shown, faults(told))


def names(told: Sequence[ServerStatus]) -> list[str]:
    """Return the servers that told their state, and those that shall store a stream with them."""
    named = {name for status in told for each in status.replicas for name in each.servers}
    return sorted(named | {status.server for status in told})


def faults(told: Sequence[ServerStatus], but: str = "") -> list[str]:
    """Return what is not as it should be, in words. The server `but` is left out."""
    known = {status.server: status for status in told}
    found = []
    for name in names(told):
        if name == but:
            continue
        if name not in known:
            found.append(f"server {name} does not answer")
        elif known[name].health != GOOD:
            why = "; ".join(known[name].reasons) or "it gives no reason"
            found.append(f"server {name} is not healthy: {why}")
    return [*found, *_differences([status for status in told if status.server != but])]


def refusal(told: Sequence[ServerStatus], server: str, replace: bool) -> str:
    """Return why this server may not be stopped now; empty if it may.

    `replace`: its store will be empty, so the others must hold everything, and its disk must have
    space for a second store. Ask it before the others, because the log grows meanwhile.
    """
    others = [name for name in names(told) if name != server]
    if server not in {status.server for status in told}:
        known = ", ".join(names(told)) or "none"
        return f"server {server} does not answer: it cannot be told to stop (servers: {known})"
    if replace and not others:
        return f"{server} is the only server: an empty store would lose the log"
    found = [*faults(told, but=server), *(losses(told, server) if replace else ())]
    if found:
        return f"the other servers must be healthy first: {'; '.join(found)}"
    return "; ".join(lack_of_space(told, server)) if replace else ""


def growth_refusal(told: Sequence[ServerStatus], count: int) -> str:
    """Return why the streams may not have `count` replicas now; empty if they may."""
    if found := faults(told):
        return f"all servers must be healthy first: {'; '.join(found)}"
    if len(told) < count:
        return f"there are {len(told)} servers ({', '.join(names(told)) or 'none'}): add more first"
    return ""


def _differences(told: Sequence[ServerStatus]) -> list[str]:
    """Return the streams of which two servers have other commits up to the same sequence."""
    found: dict[tuple[str, int, int], tuple[str, Replica]] = {}
    words = []
    for status in told:
        for each in status.replicas:
            name, other = found.setdefault(
                (each.stream, each.first, each.last), (status.server, each)
            )
            if (other.commits, other.bytes) != (each.commits, each.bytes):
                words.append(
                    f"stream {each.stream} differs up to sequence {each.last}: {name} has "
                    f"{other.commits} commits with {other.bytes} bytes, {status.server} has "
                    f"{each.commits} with {each.bytes}"
                )
    return words


def _last(told: Sequence[ServerStatus]) -> dict[str, int]:
    last: dict[str, int] = {}
    for status in told:
        for each in status.replicas:
            last[each.stream] = max(last.get(each.stream, 0), each.last)
    return last


def _server(status: ServerStatus, last: Mapping[str, int]) -> LogServerShown:
    streams = [
        LogReplicaShown(
            stream=each.stream,
            leads=each.leader == status.server,
            commits=each.commits,
            bytes=each.bytes,
            first=each.first,
            last=each.last,
            behind=last[each.stream] - each.last,
        )
        for each in sorted(status.replicas, key=lambda each: each.stream)
    ]
    return LogServerShown(
        name=status.server,
        health=status.health,
        reasons=list(status.reasons),
        process_id=status.process_id,
        free_bytes=status.free_bytes,
        streams=streams,
    )


def _silent(name: str) -> LogServerShown:
    return LogServerShown(
        name=name,
        health=SILENT,
        reasons=["it does not answer"],
        process_id="",
        free_bytes=0,
        streams=[],
    )
