"""The values of the metrics of the control plane: the log, its servers, the processes of services,
certificates, and how long the scheduler's decisions take.

Tests: tests/integration/test_gateway_metrics.py.
"""

from collections.abc import Iterator
from typing import Final

from libs.common import subjects
from libs.common.messages import Vitals
from services.api_gateway.control_plane import growth
from services.api_gateway.control_plane.members import Member
from services.api_gateway.control_plane.plane import ControlPlane
from services.api_gateway.metrics import declared as d
from services.api_gateway.metrics.cluster_rows import NS, Row

# Services of which one process leads.
LED: Final = (subjects.SCHEDULER_KIND, subjects.QUOTA_KIND, "audit")
SECONDS_A_DAY: Final = 86_400
US: Final = 1_000_000


def vitals_rows(vitals: Vitals) -> Iterator[Row]:
    """Yield what the scheduler says of itself."""
    yield Row(d.DROPPED, (), vitals.dropped)
    if vitals.decisions:
        yield Row(d.DECISION, ("0.5",), vitals.decision_p50_us / US)
        yield Row(d.DECISION, ("0.99",), vitals.decision_p99_us / US)


def plane_rows(plane: ControlPlane, read_seq: int) -> Iterator[Row]:
    """Yield what this gateway knows of the control plane. `read_seq` is the last commit that it has
    read itself.
    """
    yield from _service_rows(plane, read_seq)
    yield from _log_rows(plane)
    for each in plane.certificates:
        yield Row(d.CERTIFICATE, (each.name,), each.ends_ns / NS)


def _service_rows(plane: ControlPlane, read_seq: int) -> Iterator[Row]:
    known = plane.members.known()
    terms: dict[str, int] = {}
    for each in known:
        terms[each.service] = max(terms.get(each.service, 0), each.sign.epoch)
    leaders = dict.fromkeys(LED, 0)
    for each in known:
        name = (each.service, each.instance)
        up = not plane.members.is_away(each)
        leads = up and each.sign.leads and each.sign.epoch >= terms[each.service]
        yield Row(d.SERVICE_UP, name, int(up))
        yield Row(d.SERVICE_LEADS, name, int(leads))
        yield from _lag(each, name, read_seq)
        if each.service in leaders:
            leaders[each.service] += int(leads)
    for service, count in leaders.items():
        yield Row(d.SERVICE_LEADERS, (service,), count)


def _lag(member: Member, name: tuple[str, ...], read_seq: int) -> Iterator[Row]:
    """Yield the lag now, not at the sign: that of a process which hangs grows."""
    if member.sign.seq:
        yield Row(d.SERVICE_LAG, name, max(0, read_seq - member.sign.seq))


def _log_rows(plane: ControlPlane) -> Iterator[Row]:
    log = plane.log
    if log is None:
        return
    yield Row(d.LOG_COMMITS, (), log.commits)
    yield Row(d.LOG_BYTES, (), log.bytes)
    if log.bytes_max:
        yield Row(d.LOG_MAX_BYTES, (), log.bytes_max)
    if log.first_ns:
        yield Row(d.LOG_OLDEST, (), log.first_ns / NS)
    age_ns = plane.clock.wall_ns() - log.first_ns if log.first_ns else 0
    per_day = plane.growth.per_day(plane.clock.boot_ns(), log.bytes, age_ns)
    if per_day is not None:
        yield Row(d.LOG_GROWTH, (), per_day / SECONDS_A_DAY)
    days = growth.days_left(log.bytes, log.bytes_max, per_day)
    if days is not None:
        yield Row(d.LOG_FULL, (), days * SECONDS_A_DAY)
    for each in log.servers:
        yield Row(d.SERVER_UP, (each.name,), int(each.online))
        yield Row(d.SERVER_LEADS, (each.name,), int(each.leads))
        yield Row(d.SERVER_LAG, (each.name,), each.lag)
