"""The beats of the lease watchdog (`watchdog.c`), and its metrics. Pure."""

import struct
from typing import Final, NamedTuple

from services.node_agent.metrics.lines import family, labels
from services.node_agent.metrics.series import COUNTER, GAUGE

# As in watchdog.c.
LOCKED, REALTIME, ARMED = 1, 2, 4
BEAT: Final = struct.Struct("<QIIII")


class Beat(NamedTuple):
    """One beat: when (boot clock), what the watchdog has (`LOCKED`, ...), how many processes it
    killed so far, how many outlive the lease now, and the errno of its last failure.
    """

    at_ns: int
    flags: int = 0
    killed: int = 0
    left: int = 0
    error: int = 0


def beat_metrics(node: str, beat: Beat, age_s: float, restarts: int) -> list[str]:
    """Return the age of the last beat, what the watchdog has, and what it did."""
    place = labels({"Hostname": node})
    gauges = (
        ("beat_age_seconds", "Time since the lease watchdog's last beat", age_s),
        ("realtime", "Whether it is scheduled in real time", int(bool(beat.flags & REALTIME))),
        ("armed", "Whether a hardware watchdog resets the machine", int(bool(beat.flags & ARMED))),
        ("outliving_processes", "Processes that outlive the lease now", beat.left),
    )
    counters = (
        ("restarts_total", "Lease watchdogs that were replaced", max(0, restarts)),
        ("kills_total", "Processes that this lease watchdog killed", beat.killed),
    )
    lines: list[str] = []
    for kind, rows in ((GAUGE, gauges), (COUNTER, counters)):
        for name, words, value in rows:
            lines += family(f"muster_lease_watchdog_{name}", words, kind, [(place, value)])
    return lines
