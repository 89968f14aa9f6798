"""Who of this node's attempts has which device, and whose a process is."""

from collections.abc import Callable, Sequence
from typing import Final

from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.state import REFUSED, Attempt, State
from services.node_agent.drivers.simulated import Work
from services.node_agent.machine import processes

# No process has so many above it.
ANCESTORS_MAX: Final = 64


def undivided(state: State, gpus: Sequence[GpuId], but: str = "") -> list[GpuId]:
    """Of a device that another attempt here still runs on, nothing can be told: the last of them is
    asked for it.

    `but`: the attempt that asks, if it is at work itself.
    """
    held = running(state, but)
    return [uuid for uuid in gpus if uuid not in held]


def running(state: State, but: str = "") -> set[GpuId]:
    """The devices on which attempts run, or are to, but that one."""
    attempts = [attempt for key, attempt in state.attempts.items() if key != but]
    return {
        uuid
        for attempt in attempts
        if attempt.exit is None and attempt.phase != REFUSED
        for uuid in attempt.gpus
    }


def can_be_told(state: State, gpus: Sequence[GpuId]) -> list[GpuId]:
    """Those of which it can be told what was left there: nobody runs there, or none but whoever has
    an instance of its own.
    """
    attempts = [
        attempt
        for attempt in state.attempts.values()
        if attempt.exit is None and attempt.phase != REFUSED
    ]
    shared = {uuid for attempt in attempts for uuid in attempt.gpus if uuid not in attempt.slices}
    return [uuid for uuid in gpus if uuid not in shared]


def slices_of_others(state: State, key: str) -> dict[GpuId, int]:
    """By device the memory slices that attempts here own, but this one: of their MIG instances,
    made or still to be made.
    """
    found: dict[GpuId, int] = {}
    for other, attempt in state.attempts.items():
        for uuid, slices in (
            attempt.slices.items() if other != key and attempt.phase != REFUSED else ()
        ):
            found[uuid] = found.get(uuid, 0) | slices
    return found


def at_work(state: State) -> dict[GpuId, list[Attempt]]:
    """By device the attempts whose process runs there."""
    found: dict[GpuId, list[Attempt]] = {}
    for attempt in state.attempts.values():
        for uuid in attempt.gpus if attempt.pid and attempt.exit is None else ():
            found.setdefault(uuid, []).append(attempt)
    return found


def works(state: State, device_s: Callable[[AttemptRef], float | None]) -> dict[GpuId, list[Work]]:
    """What works on simulated devices, with what it says of that."""
    return {
        uuid: [Work(attempt.pid, device_s(attempt.ref)) for attempt in found]
        for uuid, found in at_work(state).items()
    }


def key_of(state: State, pid: int) -> str:
    """The attempt that a process is of, which may be far below its first one; empty when it is
    none's, or gone.
    """
    first = {
        attempt.pid: key
        for key, attempt in state.attempts.items()
        if attempt.pid and attempt.exit is None
    }
    for _ in range(ANCESTORS_MAX):
        if pid in first:
            return first[pid]
        found = processes.process(pid) if pid > 1 else None
        if found is None:
            return ""
        pid = found.parent
    return ""
