"""Gives each attempt that works the readings of its devices.

The readings of a card that is divided (MIG) are those of all its instances, so a job that has an
instance gets none of them. Pure. Tests: tests/unit/test_device_use.py.
"""

from services.node_agent.core import device_use
from services.node_agent.core.observations import UseSampled
from services.node_agent.core.state import LAUNCHED, Attempt, State


def note_round(state: State, seen: UseSampled, now_ns: int) -> None:
    """Note a round of readings. Attempts with something to record are considered next."""
    for key, kept in seen.kept.items():
        adopted = state.attempts.get(key)
        if adopted is not None and not adopted.use.devices:
            adopted.use.devices = kept.devices
    for key, attempt in state.attempts.items() if seen.readings else ():
        if not is_sampled(attempt):
            continue
        whole = [uuid for uuid in attempt.gpus if uuid not in attempt.slices]
        device_use.note(attempt.use, whole, seen.readings, now_ns)
        if attempt.health is None and device_use.is_due(attempt.use, now_ns):
            state.touched[key] = None


def is_sampled(attempt: Attempt) -> bool:
    """Return whether the attempt has devices and its process runs."""
    return (
        attempt.phase == LAUNCHED
        and bool(attempt.gpus)
        and attempt.pid > 0
        and attempt.exit is None
    )
