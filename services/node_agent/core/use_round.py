"""Gives each attempt that works the readings of its devices.

Pure. Tests: tests/unit/test_device_use.py.
"""

from libs.common.model import GpuId
from services.node_agent.core import device_use
from services.node_agent.core.device_use import Reading
from services.node_agent.core.state import LAUNCHED, Attempt, State


def note_round(state: State, readings: dict[GpuId, Reading], now_ns: int) -> None:
    """Note a round of readings. Attempts with something to record are considered next."""
    for key, attempt in state.attempts.items():
        if not is_sampled(attempt):
            continue
        device_use.note(attempt.use, attempt.gpus, readings, now_ns)
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
