"""The health of a replica: when it is probed, ready, unready, or given up.

Pure. A replica is given up if it is not ready within its startup timeout, or if it was ready and
does not answer for as long. After a restart of the agent its health is unknown until the first
probe, and nothing is recorded until then. Tests: tests/unit/test_agent_serving.py.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.messages import StartOrder
from libs.common.placeholders import HOST, PORT
from libs.common.reasons import STARTUP_TIMEOUT, UNHEALTHY
from services.node_agent.core import observations as o

MS: Final = 1_000_000
# Probe interval while a replica starts, and after a ready one failed a probe.
EVERY_STARTING_NS: Final = 250 * MS
AGAIN_NS: Final = 1_000 * MS


class Health(msgspec.Struct):
    """The health of one replica.

    `ready` is the result of the probes (None: unknown), `recorded` the readiness that the log has,
    `waiting_ns` the time since which it is not ready.
    """

    probe: o.Probe
    ready: bool | None = False
    recorded: bool | None = False
    probing: bool = False
    probe_at_ns: int = 0
    waiting_ns: int = 0
    was_ready: bool = False
    failures: int = 0
    wrong: str = ""


def probe_of(order: StartOrder) -> o.Probe | None:
    """Return the probe of a replica; None for any other job, and where another node answers."""
    serve = order.spec.serve
    if serve is None or order.rank:
        return None
    limits = serve.health_interval_s, serve.health_timeout_s, serve.health_failures
    return o.Probe(
        order.port,
        serve.health_path,
        serve.startup_timeout_s,
        order.spec.grace_s,
        *limits,
        keyed=serve.keyed,
    )


def argv_of(order: StartOrder, address: str) -> tuple[str, ...]:
    """Return the command of the job.

    In a replica's command the port of its placement stands for `{port}`, and the node's address for
    `{host}`.
    """
    port = str(order.port)
    if order.spec.serve is None:
        return order.spec.command
    return tuple(word.replace(PORT, port) for word in hosted(order, address))


def hosted(order: StartOrder, address: str) -> tuple[str, ...]:
    """Return the command of a replica with the node's address for `{host}`."""
    command = order.spec.command
    if order.spec.serve is None or not order.spec.serve.hosted:
        return command
    return tuple(word.replace(HOST, address) for word in command)


def new_health(probe: o.Probe | None) -> Health | None:
    """Return the health of an attempt that starts now."""
    return Health(probe) if probe is not None else None


def adopted_health(probe: o.Probe | None) -> Health | None:
    """Return the health of an attempt that an earlier agent started, and perhaps
    recorded as ready.
    """
    return Health(probe, ready=None, recorded=None) if probe is not None else None


def end_reason(health: Health, now_ns: int) -> str:
    """Return why the replica must end now; empty if it may go on."""
    if health.ready is True:
        health.waiting_ns = 0
    elif not health.waiting_ns:
        health.waiting_ns = now_ns
    elif now_ns >= _give_up_ns(health):
        return UNHEALTHY if health.was_ready else STARTUP_TIMEOUT
    return ""


def begin_probe(health: Health, now_ns: int) -> bool:
    """Return whether the replica must be probed now. There is one probe at a time."""
    if health.probing or now_ns < health.probe_at_ns:
        return False
    health.probing = True
    return True


def note_probe(health: Health, wrong: str, now_ns: int) -> None:
    """Note the result of a probe.

    One success makes the replica ready. A ready one becomes unready after `probe.failures` failures
    in a row.
    """
    health.probing = False
    every_ns = health.probe.interval_s * 1_000 * MS
    if not wrong:
        note_request(health)
        health.probe_at_ns = now_ns + every_ns
        return
    health.failures += 1
    if health.ready is False or health.failures >= health.probe.failures:
        health.ready, health.wrong = False, wrong
    health.probe_at_ns = now_ns + (
        min(AGAIN_NS, every_ns) if health.was_ready else EVERY_STARTING_NS
    )


def move(health: Health, port: int) -> None:
    """Probe another port from now on."""
    health.probe = replace(health.probe, port=port)
    health.probe_at_ns, health.failures = 0, 0


def note_request(health: Health) -> None:
    """Note an answer to a probe or a request.

    A replica that answers requests is alive, even if it is too busy for its probe.
    """
    health.ready, health.was_ready, health.failures = True, True, 0


def take_change(health: Health) -> bool:
    """Return whether the readiness changed since it was last recorded, and note it as recorded."""
    if health.ready is None or health.ready is health.recorded:
        return False
    health.recorded = health.ready
    return True


def due_times_ns(health: Health) -> list[int]:
    """Return when the replica must be considered although nothing happens."""
    times = [] if health.probing else [health.probe_at_ns]
    return times if health.ready is True else [*times, _give_up_ns(health)]


def _give_up_ns(health: Health) -> int:
    return health.waiting_ns + health.probe.timeout_s * 1_000 * MS
