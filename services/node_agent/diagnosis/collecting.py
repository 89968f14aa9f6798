"""Collects the evidence of one attempt on this node, bounded in time, without a call to a device.

The kernel's view is read at the beginning and at the end, so that it says what a process did in
between; in between are the looks at the stacks. What a collector cannot read is a note, never an
error: a diagnosis with half of the evidence is better than none. Tests:
tests/integration/test_diagnosis_collecting.py.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import msgspec

from libs.common.diagnosis.evidence import (
    LOOKS,
    Collective,
    DeviceSeen,
    NodeSeen,
    PortSeen,
    ProcessSeen,
    RasCommunicator,
)
from libs.common.model import NodeId
from services.node_agent.diagnosis import endings, recorders, stacks
from services.node_agent.diagnosis.rank_processes import (
    RankProcess,
    Reading,
    rank_processes,
    reading,
)
from services.node_agent.diagnosis.stacks import Stack
from services.node_agent.fabric.rdma import ports

# All collectors of one diagnosis: a gateway waits only a little longer. Then what there is counts.
COLLECT_S: Final = 6.0
# Time between two looks, for all looks, and for all calls of py-spy.
LOOK_EVERY_S: Final = 0.5
LOOKS_S: Final = 4.0
PY_SPY_ALL_S: Final = 3.0
# Counters of an RDMA port that count errors, by parts of their names.
ERRORS: Final = ("error", "discard", "retry", "timeout", "out_of_sequence", "downed")
ACTIVE: Final = "ACTIVE"
STOPPED: Final = "TtZX"
OVER: Final = "the time of the diagnosis was over"
# Ranks that a note names.
NAMED_MAX: Final = 8


class Attempted(NamedTuple):
    """The attempt to examine: its processes, its devices by local rank, and the folder and the user
    ids of the files that it writes for the agent.

    `dumps`: ask the flight recorders for new dumps, else read those of the present silence.
    """

    node_id: NodeId
    member: int
    pids: Sequence[int]
    gpus: Sequence[str]
    devices: Sequence[DeviceSeen]
    folder: str
    ids: Sequence[int]
    silent_s: int = -1
    dumps: bool = True


class Parts(NamedTuple):
    """The stacks of the ranks by pid, and notes of what could not be read."""

    looks: Mapping[int, list[Stack]]
    looked_by: Mapping[int, str]
    notes: list[str]


def collect(
    one: Attempted,
    sleep: Callable[[float], None] = time.sleep,
    deadline_s: float | None = None,
) -> NodeSeen:
    """Return the evidence that was collected by the deadline (monotonic clock; None: COLLECT_S).

    Blocks for some seconds, so it runs in a thread of its own.
    """
    deadline = time.monotonic() + COLLECT_S if deadline_s is None else deadline_s
    ranks = rank_processes(one.pids)
    began, before = time.monotonic(), {rank.pid: reading(rank, one.ids) for rank in ranks}
    first_ports = _port_errors()
    if one.dumps:
        recorders.ask_for_dumps(one.folder, [rank.rank for rank in ranks], one.ids)
    parts = _looked(ranks, before, one.ids, sleep, min(deadline, began + LOOKS_S))
    recorded = _recorded(one, ranks, parts.notes, deadline)
    communicators = _communicators(ranks, parts.notes, deadline)
    watched_ms = int(1_000 * (time.monotonic() - began))
    after = {rank.pid: reading(rank, one.ids) for rank in ranks}
    gone = [pid for pid, seen in after.items() if not seen.state]
    return NodeSeen(
        node_id=one.node_id,
        member=one.member,
        silent_s=one.silent_s,
        processes=tuple(
            msgspec.structs.replace(
                _process(rank, before[rank.pid], after[rank.pid], watched_ms),
                looks=tuple(parts.looks.get(rank.pid, ())),
                looked_by=parts.looked_by.get(rank.pid, ""),
                collectives=recorded.get(rank.pid, ()),
                gpu=_gpu(one.gpus, rank),
            )
            for rank in ranks
        ),
        processes_all=len(one.pids),
        devices=tuple(one.devices),
        ports=_ports(first_ports),
        communicators=communicators,
        notes=tuple(parts.notes),
        endings=endings.endings(one.folder, ranks, one.ids, gone),
    )


def _process(rank: RankProcess, before: Reading, after: Reading, watched_ms: int) -> ProcessSeen:
    gone = not after.state
    last = before if gone else after
    return ProcessSeen(
        rank=rank.rank,
        pid=rank.pid,
        name=rank.name,
        state="X" if gone else after.state,
        world=rank.world,
        local_world=rank.local_world,
        waits_in=last.waits_in,
        cpu_ms=last.cpu_ms - before.cpu_ms,
        moved_bytes=last.moved_bytes - before.moved_bytes,
        watched_ms=watched_ms,
        threads=last.threads,
    )


def _gpu(gpus: Sequence[str], rank: RankProcess) -> str:
    """Return the device that launchers give to a local rank; empty if it has several."""
    if rank.local_world <= 1:
        return gpus[0] if len(gpus) == 1 else ""
    return gpus[rank.local_rank] if 0 <= rank.local_rank < len(gpus) else ""


def _looked(
    ranks: Sequence[RankProcess],
    before: Mapping[int, Reading],
    ids: Sequence[int],
    sleep: Callable[[float], None],
    deadline: float,
) -> Parts:
    """Look at most LOOKS times at the stacks of all ranks, by py-spy or else by faulthandler.

    A stopped process answers no signal.
    """
    looks: dict[int, list[Stack]] = {}
    looked_by: dict[int, str] = {}
    spy_deadline = min(deadline, time.monotonic() + PY_SPY_ALL_S)
    for number in range(LOOKS):
        if number:
            sleep(LOOK_EVERY_S)
        if time.monotonic() >= deadline:
            break
        spied = _spied([rank.pid for rank in ranks], ids, spy_deadline)
        rest = [
            rank.pid
            for rank in ranks
            if rank.pid not in spied and before[rank.pid].state not in STOPPED
        ]
        for found, by in (
            (spied, stacks.PY_SPY),
            (stacks.by_faulthandler(rest, ids, deadline), stacks.FAULTHANDLER),
        ):
            for pid, stack in found.items():
                looks.setdefault(pid, []).append(stack)
                looked_by[pid] = by
    blind = [str(rank.rank) for rank in ranks if rank.pid not in looks]
    notes = [f"no Python stack of rank {', '.join(blind[:NAMED_MAX])}"] if blind else []
    return Parts(looks, looked_by, notes)


def _spied(pids: Sequence[int], ids: Sequence[int], deadline: float) -> dict[int, Stack]:
    """Return the stacks that py-spy can read before the deadline; none without py-spy."""
    path = stacks.py_spy_path()
    if not path or not pids:
        return {}
    with ThreadPoolExecutor(os.cpu_count() or 1, "py-spy") as threads:
        found = threads.map(partial(_spied_in_time, path, ids, deadline), pids)
        return {pid: stack for pid, stack in zip(pids, found, strict=True) if stack}


def _spied_in_time(path: str, ids: Sequence[int], deadline: float, pid: int) -> Stack:
    left_s = deadline - time.monotonic()
    return stacks.by_py_spy(path, pid, ids, min(stacks.PY_SPY_S, left_s)) if left_s > 0 else ()


def _recorded(
    one: Attempted, ranks: Sequence[RankProcess], notes: list[str], deadline: float
) -> dict[int, tuple[Collective, ...]]:
    """Return the last collectives of each rank that has a flight recorder, by pid."""
    since_s = 0.0 if one.dumps else time.time() - max(0, one.silent_s)
    limit_s = min(recorders.DUMPS_S, deadline - time.monotonic())
    if limit_s <= 0:
        notes.append(f"no flight recorder was read: {OVER}")
        return {}
    numbers = [rank.rank for rank in ranks]
    found = recorders.recorded(one.folder, numbers, one.ids, since_s=since_s, limit_s=limit_s)
    notes += [
        f"flight recorder of rank {rank}: {each.error}"
        for rank, each in found.items()
        if each.error
    ]
    return {rank.pid: found[rank.rank].collectives for rank in ranks if rank.rank in found}


def _communicators(
    ranks: Sequence[RankProcess], notes: list[str], deadline: float
) -> tuple[RasCommunicator, ...]:
    """Return what NCCL's RAS says. It answers for all nodes of the job."""
    address = next((rank.ras for rank in ranks if rank.ras), "")
    if not address:
        return ()
    limit_s = min(recorders.RAS_S, deadline - time.monotonic())
    if limit_s <= 0:
        notes.append(f"NCCL RAS was not asked: {OVER}")
        return ()
    try:
        return recorders.communicators(address, limit_s)
    except ConnectionRefusedError:
        return ()  # the job does not use NCCL, or not yet
    except (OSError, ValueError) as error:
        notes.append(f"NCCL RAS at {address[:64]}: {error}")
        return ()


def _port_errors() -> dict[str, tuple[bool, int]]:
    """Return whether each RDMA port is up, and its errors; -1 if it counts none."""
    found = {}
    for port in ports.ports():
        counts = [
            count for name, count in port.counters.items() if any(part in name for part in ERRORS)
        ]
        found[f"{port.device}/{port.port}"] = (port.state == ACTIVE, sum(counts) if counts else -1)
    return found


def _ports(before: Mapping[str, tuple[bool, int]]) -> tuple[PortSeen, ...]:
    return tuple(
        PortSeen(name, is_up, count - before[name][1] if count >= 0 and name in before else -1)
        for name, (is_up, count) in _port_errors().items()
    )
