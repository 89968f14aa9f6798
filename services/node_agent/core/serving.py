"""The health of a replica: when it is probed, when it counts as ready, when it has failed to be.

Pure. One that is not ready within its startup timeout, or was ready and does not answer for as
long, is given up. Of an attempt that an earlier agent began nothing is known until it is probed,
and nothing is said until then. Tests: tests/unit/test_agent_serving.py.
"""

from typing import Final

import msgspec

from libs.common.messages import StartOrder
from libs.common.reasons import STARTUP_TIMEOUT, UNHEALTHY
from services.node_agent.core import observations as o

MS: Final = 1_000_000
# While it starts; one that was ready and failed is asked again sooner than one that is ready.
EVERY_STARTING_NS: Final = 250 * MS
AGAIN_NS: Final = 1_000 * MS
PORT: Final = "{port}"


class Health(msgspec.Struct):
    """`ready` is what the probes say (None: not known yet), `said` what was last recorded,
    `waiting_ns` since when it is not ready.
    """

    probe: o.Probe
    ready: bool | None = False
    said: bool | None = False
    probing: bool = False
    probe_at_ns: int = 0
    waiting_ns: int = 0
    was_ready: bool = False
    failures: int = 0
    wrong: str = ""


def probe_of(order: StartOrder) -> o.Probe | None:
    """What is to be asked of a replica; None for any other job."""
    serve = order.spec.serve
    if serve is None:
        return None
    asked = serve.health_interval_s, serve.health_timeout_s, serve.health_failures
    return o.Probe(
        order.port, serve.health_path, serve.startup_timeout_s, order.spec.grace_s, *asked
    )


def argv_of(order: StartOrder) -> tuple[str, ...]:
    """The command, with the port that the placement gave it. Other jobs' braces are their own."""
    if order.spec.serve is None:
        return order.spec.command
    return tuple(word.replace(PORT, str(order.port)) for word in order.spec.command)


def beginning(probe: o.Probe | None) -> Health | None:
    """Of an attempt that begins now."""
    return Health(probe) if probe is not None else None


def adopted(probe: o.Probe | None) -> Health | None:
    """Of an attempt that an earlier agent began, and may have called ready."""
    return Health(probe, ready=None, said=None) if probe is not None else None


def look(health: Health, now_ns: int) -> str:
    """Why it is to be ended now; empty while it is not."""
    if health.ready is True:
        health.waiting_ns = 0
    elif not health.waiting_ns:
        health.waiting_ns = now_ns
    elif now_ns >= _give_up_ns(health):
        return UNHEALTHY if health.was_ready else STARTUP_TIMEOUT
    return ""


def ask(health: Health, now_ns: int) -> bool:
    """Whether it is to be probed now; one probe at a time."""
    if health.probing or now_ns < health.probe_at_ns:
        return False
    health.probing = True
    return True


def answered(health: Health, wrong: str, now_ns: int) -> None:
    """One success makes it ready; a ready one becomes unready by as many failures in a row as its
    model says.
    """
    health.probing = False
    every_ns = health.probe.interval_s * 1_000 * MS
    if not wrong:
        served(health)
        health.probe_at_ns = now_ns + every_ns
        return
    health.failures += 1
    if health.ready is False or health.failures >= health.probe.failures:
        health.ready, health.wrong = False, wrong
    health.probe_at_ns = now_ns + (
        min(AGAIN_NS, every_ns) if health.was_ready else EVERY_STARTING_NS
    )


def served(health: Health) -> None:
    """Note an answer to a probe or a request.

    A replica that answers requests is alive, also if it is too busy for its probe.
    """
    health.ready, health.was_ready, health.failures = True, True, 0


def news(health: Health) -> bool:
    """Whether something is to be said; it counts as said from now on."""
    if health.ready is None or health.ready is health.said:
        return False
    health.said = health.ready
    return True


def next_look_ns(health: Health) -> list[int]:
    """When it must be looked at although nothing happens."""
    times = [] if health.probing else [health.probe_at_ns]
    return times if health.ready is True else [*times, _give_up_ns(health)]


def _give_up_ns(health: Health) -> int:
    return health.waiting_ns + health.probe.timeout_s * 1_000 * MS
