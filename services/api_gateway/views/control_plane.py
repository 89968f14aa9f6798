"""The control plane for people: members, the log with the days that it has room, certificates."""

import msgspec

from services.api_gateway.control_plane import expiry, growth
from services.api_gateway.control_plane.members import Member
from services.api_gateway.control_plane.plane import ControlPlane
from services.api_gateway.times import rfc3339


class ServiceProcessShown(msgspec.Struct):
    """A process of a service. `state` is leader, follower, active (a service without a leader) or
    away (no message for 5 s, or another leads a later term). `epoch` is the term that it leads or
    follows. `lag` is the number of commits that it has not read yet; null: not known.
    """

    service: str
    instance: str
    state: str
    epoch: int
    seq: int
    lag: int | None
    heard_s_ago: float
    version: str


class ServerShown(msgspec.Struct):
    """A server of the log. `state` is leader, follower, behind or away. `lag` is in commits."""

    name: str
    state: str
    lag: int


class LogShown(msgspec.Struct):
    """The size of the log. `limit_bytes` is 0 without a limit. `growth_bytes_per_day` is measured
    over the last day; null: not known yet. `days_left` is null if the log does not grow.
    """

    commits: int
    last: int
    size_bytes: int
    limit_bytes: int
    filled_pct: float
    growth_bytes_per_day: int | None
    days_left: float | None
    warning: str
    servers: list[ServerShown]


class CertificateShown(msgspec.Struct):
    """A certificate of the cluster and the days that it is still valid."""

    name: str
    subject: str
    ends_at: str | None
    days_left: int
    warning: str


def control_plane_shown(plane: ControlPlane | None) -> dict[str, object]:
    """Show the control plane; nothing of it for the past."""
    if plane is None:
        return {"members": [], "log": None, "certificates": []}
    return {
        "members": members_shown(plane),
        "log": log_shown(plane),
        "certificates": certificates_shown(plane),
    }


def members_shown(plane: ControlPlane) -> list[ServiceProcessShown]:
    """Show all processes of all services."""
    known = plane.members.known()
    terms = {each.service: 0 for each in known}
    for each in known:
        terms[each.service] = max(terms[each.service], each.sign.epoch)
    return [
        ServiceProcessShown(
            service=each.service,
            instance=each.instance,
            state=_state(plane, each, terms[each.service]),
            epoch=each.sign.epoch,
            seq=each.sign.seq,
            lag=each.lag,
            heard_s_ago=round((plane.clock.boot_ns() - each.heard_ns) / 1e9, 1),
            version=each.sign.version,
        )
        for each in known
    ]


def _state(plane: ControlPlane, member: Member, latest_term: int) -> str:
    was_replaced = member.sign.leads and member.sign.epoch < latest_term
    if plane.members.is_away(member) or was_replaced:
        return "away"
    if member.service == "gateway":
        return "active"
    return "leader" if member.sign.leads else "follower"


def log_shown(plane: ControlPlane) -> LogShown | None:
    """Show the log; None before the first survey."""
    log = plane.log
    if log is None:
        return None
    age_ns = plane.clock.wall_ns() - log.first_ns if log.first_ns else 0
    per_day = plane.growth.per_day(plane.clock.boot_ns(), log.bytes, age_ns)
    servers = [
        ServerShown(each.name, _server_state(each.leads, each.current, each.online), each.lag)
        for each in log.servers
    ]
    return LogShown(
        commits=log.commits,
        last=log.last,
        size_bytes=log.bytes,
        limit_bytes=log.bytes_max,
        filled_pct=round(100 * log.bytes / log.bytes_max, 1) if log.bytes_max else 0.0,
        growth_bytes_per_day=per_day,
        days_left=growth.days_left(log.bytes, log.bytes_max, per_day),
        warning=growth.warning(log.bytes, log.bytes_max),
        servers=servers,
    )


def _server_state(leads: bool, current: bool, online: bool) -> str:
    if not online:
        return "away"
    if leads:
        return "leader"
    return "follower" if current else "behind"


def certificates_shown(plane: ControlPlane) -> list[CertificateShown]:
    """Show the certificates that this gateway uses."""
    now_ns = plane.clock.wall_ns()
    found = []
    for each in plane.certificates:
        days = expiry.days_left(each.ends_ns, now_ns)
        words = f"it ends in {days} days: renew it" if days >= 0 else "it has ended: renew it"
        found.append(
            CertificateShown(
                each.name,
                each.subject,
                rfc3339(each.ends_ns),
                days,
                words if days < expiry.SOON_DAYS else "",
            )
        )
    return found
