"""Decide whether the store of one of the log's servers may be emptied, by what the servers tell.

Gateways check it before they order a replacement, and the process beside the server checks it again
before it obeys. Pure. Tests: tests/unit/test_log_servers.py, tests/unit/test_server_answers.py.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from libs.common.messages.server_messages import Replica, ServerStatus

GOOD: Final = "good"
# With fewer servers beside it, no majority holds the log while one is empty.
OTHERS_MIN: Final = 2
MIB: Final = 1 << 20
# Free space that a server needs besides its streams; not less than `space_watch.START_BYTES`.
SPARE_BYTES: Final = 128 * MIB


def refusal(told: Sequence[ServerStatus], server: str, others: Sequence[str]) -> str:
    """Return why `server` does not empty its store; empty if it does.

    `others` are the servers that it asked.
    """
    if len(others) < OTHERS_MIN:
        return f"it knows {len(others)} other servers, and {OTHERS_MIN} must hold the log meanwhile"
    known = {status.server: status for status in told}
    found = []
    for name in others:
        if name not in known:
            found.append(f"server {name} does not answer")
        elif known[name].health != GOOD:
            found.append(f"server {name} is not healthy: {'; '.join(known[name].reasons)}")
    return "; ".join([*found, *losses(told, server), *lack_of_space(told, server)])


def losses(told: Sequence[ServerStatus], server: str) -> list[str]:
    """Return the commits that an empty store of `server` could lose, in words; none if it may go.

    Every other server that shall store a stream must hold all that this one holds. A majority is
    not enough: the empty server votes too, and together with a server that is behind it could elect
    a leader that never had the last commits. Ask `server` before the others, because the log grows
    meanwhile.
    """
    held = {status.server: {each.stream: each for each in status.replicas} for status in told}
    replaced = [
        f"server {status.server} is being replaced: wait until it holds the whole log"
        for status in told
        if status.is_replaced and status.server != server
    ]
    return replaced + [
        loss
        for stream, others in sorted(_streams(told, server).items())
        for loss in _losses(held, server, stream, others)
    ]


def lack_of_space(told: Sequence[ServerStatus], server: str) -> list[str]:
    """Return that the disk of `server` cannot hold a new store beside the old one; none if it can.

    The server would fill its disk with what the others send, and then be killed.
    """
    free = next((status.free_bytes for status in told if status.server == server), 0)
    held: dict[str, int] = {}
    for status in told:
        for each in status.replicas if status.server != server else ():
            held[each.stream] = max(held.get(each.stream, 0), each.bytes)
    needed = SPARE_BYTES + sum(held[stream] for stream in _streams(told, server) if stream in held)
    if free >= needed:
        return []
    return [
        f"the disk of server {server} has {free // MIB} MiB free, and a new store beside the old "
        f"one needs {-(-needed // MIB)} MiB: free space on it, or start the server with an empty "
        "disk (docs/bus.md)"
    ]


def holds_all(told: Sequence[ServerStatus], server: str) -> bool:
    """Return whether `server` is healthy and stores all that the other servers store.

    Ask it after the others, because the log grows meanwhile. False if it stores no stream, or if a
    server that shall store one did not answer.
    """
    held = {status.server: {each.stream: each.last for each in status.replicas} for status in told}
    own, streams = held.get(server, {}), _streams(told, server)
    is_healthy = any(status.server == server and status.health == GOOD for status in told)
    return (
        is_healthy
        and bool(own)
        and all(
            stream in own and name in held and held[name].get(stream, 0) <= own[stream]
            for stream, others in streams.items()
            for name in others
        )
    )


def named(told: Iterable[ServerStatus]) -> set[str]:
    """Return all servers that shall store a stream."""
    return {name for status in told for each in status.replicas for name in each.servers}


def _streams(told: Sequence[ServerStatus], server: str) -> dict[str, list[str]]:
    """Return each stream that `server` stores or shall store, with the others that shall."""
    named: dict[str, set[str]] = {}
    for status in told:
        for each in status.replicas:
            named.setdefault(each.stream, set()).update(each.servers, {status.server})
    return {
        stream: sorted(servers - {server}) for stream, servers in named.items() if server in servers
    }


def _losses(
    held: Mapping[str, Mapping[str, Replica]], server: str, stream: str, others: Sequence[str]
) -> list[str]:
    own = held.get(server, {}).get(stream)
    last = own.last if own is not None else 0
    if not others:
        return [f"stream {stream} is stored on {server} only: give it three replicas first"]
    found = []
    for name in others:
        copy = held.get(name, {}).get(stream)
        if copy is None:
            found.append(f"server {name} does not store stream {stream} yet")
        elif copy.last < last:
            found.append(
                f"server {name} is behind: it has stream {stream} up to sequence {copy.last}, and "
                f"{server} up to {last}"
            )
    return found
