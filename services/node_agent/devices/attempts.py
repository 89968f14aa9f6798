"""Keep which attempts of this node have which devices, and find the attempt of a process."""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from libs.common.model import AttemptRef, GpuId
from services.node_agent.core.state import LAUNCHING, REFUSED, WAITING, Attempt, State
from services.node_agent.drivers.simulated import Work
from services.node_agent.machine import processes

# A bound on the walk from a process to its ancestors.
ANCESTORS_MAX: Final = 64


def undivided(state: State, gpus: Sequence[GpuId], but: str = "") -> list[GpuId]:
    """Return the devices that no other attempt uses.

    A device in use cannot be checked. `but`: the attempt that asks, if it runs itself.
    """
    held = running(state, but)
    return [uuid for uuid in gpus if uuid not in held]


def running(state: State, but: str = "") -> set[GpuId]:
    """Return the devices on which attempts run or will run, except that one's."""
    attempts = [attempt for key, attempt in state.attempts.items() if key != but]
    return {
        uuid
        for attempt in attempts
        if attempt.exit is None and attempt.phase != REFUSED
        for uuid in attempt.gpus
    }


def holding(state: State, entered: Mapping[str, Collection[GpuId]], but: str) -> set[GpuId]:
    """Return the devices that attempts have, except that one's.

    An attempt that was not launched yet has only the devices that it `entered`.
    """
    return {
        uuid
        for key, attempt in state.attempts.items()
        if key != but and attempt.exit is None and attempt.phase != REFUSED
        for uuid in attempt.gpus
        if attempt.phase not in (WAITING, LAUNCHING) or uuid in entered.get(key, ())
    }


def can_be_checked(state: State, gpus: Sequence[GpuId]) -> list[GpuId]:
    """Return the devices that can be checked: no attempt runs there without a MIG instance of its
    own.
    """
    attempts = [
        attempt
        for attempt in state.attempts.values()
        if attempt.exit is None and attempt.phase != REFUSED
    ]
    shared = {uuid for attempt in attempts for uuid in attempt.gpus if uuid not in attempt.slices}
    return [uuid for uuid in gpus if uuid not in shared]


def slices_of_others(state: State, key: str) -> dict[GpuId, int]:
    """Return the memory slices per device that other attempts own, for MIG instances made or
    planned.
    """
    found: dict[GpuId, int] = {}
    for other, attempt in state.attempts.items():
        for uuid, slices in (
            attempt.slices.items() if other != key and attempt.phase != REFUSED else ()
        ):
            found[uuid] = found.get(uuid, 0) | slices
    return found


def at_work(state: State) -> dict[GpuId, list[Attempt]]:
    """Return the attempts whose process runs, by device."""
    found: dict[GpuId, list[Attempt]] = {}
    for attempt in state.attempts.values():
        for uuid in attempt.gpus if attempt.pid and attempt.exit is None else ():
            found.setdefault(uuid, []).append(attempt)
    return found


def works(state: State, device_s: Callable[[AttemptRef], float | None]) -> dict[GpuId, list[Work]]:
    """Return the work on simulated devices, as the jobs report it."""
    return {
        uuid: [Work(attempt.pid, device_s(attempt.ref)) for attempt in found]
        for uuid, found in at_work(state).items()
    }


def key_of(state: State, pid: int) -> str:
    """Return the attempt of a process, by its ancestors; empty if there is none."""
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
