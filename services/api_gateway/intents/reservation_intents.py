"""Requests about reservations and maintenances: nodes, time, and who may use them.

Pure. If a request gives a number of nodes and labels, this file chooses the nodes once, and the
fact records them. Tests: tests/unit/test_gateway_reservation_intents.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import ReservationCleared, ReservationSet, check_fact_size
from libs.common.model import ID_PATTERN, NODES_MAX, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Cluster, Node, is_leaving
from libs.common.state.ordering import SECOND_NS
from libs.common.state.reservation import Reservation, member_named
from services.api_gateway.intents.fields import check_known, check_range, convert
from services.api_gateway.intents.identity_intents import DEFAULT
from services.api_gateway.intents.order_intents import YEAR_S
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.times import duration_s, moment_ns, rfc3339

RANGES: Final = (("count", 0, NODES_MAX),)


class ReservationBody(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are kept for some jobs, or free of jobs, for a time.

    Give `nodes`, or `count` and `node_labels`. The reservation begins at `start` (RFC 3339; empty:
    now) and lasts `duration`. It is for jobs of these `tenants` or `users` that name it. Users are
    given as TENANT/USER; the name alone is enough if the cluster has one tenant. During a
    `maintenance` no job runs on the nodes.
    """

    duration: int | str
    start: str = ""
    nodes: tuple[str, ...] = ()
    count: int = 0
    node_labels: dict[str, str] = {}
    tenants: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    maintenance: bool = False


FIELDS: Final = ReservationBody.__struct_fields__


def reservation(
    cluster: Cluster, body: object, name: str, user: str, now_ns: int
) -> ReservationSet:
    """Return the fact for `PUT /v1/reservations/{name}`.

    Raises Refused, and Problem 409 if a node is reserved for others at that time.
    """
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"reservation: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    if not isinstance(body, dict) or "duration" not in body:
        raise Refused('duration: missing: give how long the reservation lasts, for example "2h"')
    check_known(body, FIELDS, "field")
    request = convert(dict(body), ReservationBody)
    if request.maintenance == bool(request.tenants or request.users):
        raise Refused(
            "tenants: give either the tenants or users that may use the reservation (--tenant, "
            "--for-user), or maintenance: true (muster maintenance)"
        )
    check_known(request.tenants, {*cluster.tenants, DEFAULT}, "tenant")
    start_ns, end_ns = _span(request, now_ns)
    wanted = ReservationSet(
        reservation=name,
        nodes=(),
        start_ns=start_ns,
        end_ns=end_ns,
        tenants=tuple(TenantId(tenant) for tenant in request.tenants),
        users=tuple(_member(cluster, each) for each in request.users),
        user=user,
    )
    fact = msgspec.structs.replace(wanted, nodes=_nodes(cluster, request, wanted))
    check_fact_size(fact)
    return fact


def _member(cluster: Cluster, given: str) -> str:
    """Return a user as TENANT/USER. Raises Refused.

    Two tenants may have users of the same name.
    """
    tenants = {*cluster.tenants, DEFAULT}
    tenant, slash, user = given.partition("/")
    if given and not slash and len(tenants) == 1:
        return member_named(DEFAULT, given)
    if not (tenant and user):
        raise Refused(
            f"users: {given[:64]!r} does not say of which tenant: write TENANT/USER, for example "
            f"{member_named(min(tenants), given[:64] or 'ada')}"
        )
    check_known([tenant], tenants, "tenant")
    return given


def _span(request: ReservationBody, now_ns: int) -> tuple[int, int]:
    lasts_s = duration_s(request.duration, "duration")
    check_range("duration", lasts_s, 1, YEAR_S)
    start_ns = moment_ns(request.start, "start") or now_ns
    end_ns = start_ns + lasts_s * SECOND_NS
    if end_ns <= now_ns or start_ns > now_ns + YEAR_S * SECOND_NS:
        raise Refused(
            f"start: {request.start or 'now'} for {request.duration} is over already, or begins in "
            "more than a year: give a time within the next year"
        )
    return start_ns, end_ns


def _nodes(
    cluster: Cluster, request: ReservationBody, wanted: ReservationSet
) -> tuple[NodeId, ...]:
    if bool(request.nodes) == bool(request.count or request.node_labels):
        raise Refused(
            "nodes: give either the nodes by name, or their number as count, optionally with "
            "node_labels"
        )
    check_known(request.nodes, cluster.nodes, "node")
    check_range("count", request.count, *RANGES[0][1:])
    if not request.nodes:
        return _choose_nodes(cluster, request, wanted)
    for node_id in request.nodes:
        other = None if request.maintenance else _overlapping(cluster, NodeId(node_id), wanted)
        if other is not None:
            text = (
                f"node {node_id} is reserved by {other.name} from {rfc3339(other.start_ns)} to "
                f"{rfc3339(other.end_ns)}: choose another node or time"
            )
            raise Problem(409, text, node=node_id)
    return tuple(dict.fromkeys(NodeId(node_id) for node_id in request.nodes))


def _choose_nodes(
    cluster: Cluster, request: ReservationBody, wanted: ReservationSet
) -> tuple[NodeId, ...]:
    """Return the first `count` usable nodes with the labels that are free then; 0 means all."""
    free = [
        node.node_id
        for node in _labelled(cluster, request)
        if _overlapping(cluster, node.node_id, wanted) is None
    ]
    if not free or len(free) < request.count:
        raise Refused(_too_few(request.count, len(free)))
    return tuple(free[: request.count or NODES_MAX])


def _too_few(count: int, free: int) -> str:
    if not free:
        return "count: no usable node with these labels is free then: ask for another time"
    return (
        f"count: {count} nodes were asked for, and {free} usable nodes with these labels are free "
        f"then: ask for at most {free}, or for another time"
    )


def _labelled(cluster: Cluster, request: ReservationBody) -> Iterable[Node]:
    for node in cluster.nodes.values():
        if (
            node.takes_work
            and not is_leaving(cluster, node.node_id)
            and request.node_labels.items() <= node.labels.items()
        ):
            yield node


def _overlapping(cluster: Cluster, node_id: NodeId, wanted: ReservationSet) -> Reservation | None:
    """Return another reservation of the node whose time overlaps; None if there is none."""
    others = [
        each
        for name, each in cluster.reservations.items()
        if name != wanted.reservation and node_id in each.nodes
    ]
    return next(
        (
            each
            for each in others
            if each.start_ns < wanted.end_ns and wanted.start_ns < each.end_ns
        ),
        None,
    )


def clearance(cluster: Cluster, name: str, user: str) -> ReservationCleared:
    """Return the fact for `DELETE /v1/reservations/{name}`. Raises Problem 404."""
    if name not in cluster.reservations:
        raise Problem(
            404, f"reservation {name[:64]!r} does not exist: list them with `muster reservations`"
        )
    return ReservationCleared(reservation=name, user=user)


def check(cluster: Cluster, spec: JobSpec, tenant: TenantId, user: str) -> None:
    """Check that a job may use the reservation that it names.

    Raises Refused if it does not exist, and Denied 403 if it is not for the job's tenant or user.
    """
    if spec.reservation:
        check_known([spec.reservation], cluster.reservations, "reservation")
        if not cluster.reservations[spec.reservation].is_for(spec, tenant, user):
            text = (
                f"reservation {spec.reservation} is not for {user or 'a user without a name'} of "
                f"tenant {tenant}: ask an operator to add them"
            )
            raise Denied(403, text)
