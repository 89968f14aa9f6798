"""What a request about reservations and maintenances means: which nodes, from when on, for how
long, and for whom.

Pure, like `intents.py`. Nodes may be given by number and labels: which ones is decided here, once,
and recorded. Held by tests/unit/test_gateway_reservation_intents.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.facts import ReservationCleared, ReservationSet, check_fact_size
from libs.common.model import ID_PATTERN, NODES_MAX, JobSpec, NodeId, TenantId
from libs.common.state.cluster import Cluster, Node, is_leaving
from libs.common.state.ordering import SECOND_NS
from libs.common.state.reservation import Reservation
from services.api_gateway.intents.fields import check_known, check_range, convert
from services.api_gateway.intents.identity_intents import DEFAULT
from services.api_gateway.intents.order_intents import YEAR_S
from services.api_gateway.problems import Denied, Problem
from services.api_gateway.times import duration_s, moment_ns, rfc3339

RANGES: Final = (("count", 0, NODES_MAX),)


class ReservationWish(msgspec.Struct, frozen=True, kw_only=True):
    """The body of `PUT /v1/reservations/{name}`: these nodes, or `count` of those with the labels;
    from `start` (RFC 3339; empty: from now on) for a duration; for jobs of these tenants or users
    that name it, or as a maintenance for nobody's.
    """

    duration: int | str
    start: str = ""
    nodes: tuple[str, ...] = ()
    count: int = 0
    node_labels: dict[str, str] = {}
    tenants: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    maintenance: bool = False


FIELDS: Final = ReservationWish.__struct_fields__


def reservation(
    cluster: Cluster, body: object, name: str, user: str, now_ns: int
) -> ReservationSet:
    """The fact. Raises Refused, and Problem 409 where a node is kept for others at that time."""
    if not ID_PATTERN.fullmatch(name):
        raise Refused(
            f"reservation: {name[:64]!r} is not valid: use small letters, digits and - (at most 63)"
        )
    if not isinstance(body, dict) or "duration" not in body:
        raise Refused('duration: missing: say how long it lasts, as in "2h"')
    check_known(body, FIELDS, "field")
    wish = convert(dict(body), ReservationWish)
    if wish.maintenance == bool(wish.tenants or wish.users):
        raise Refused(
            "tenants: say for which tenants or users it is, or that it is a maintenance: one "
            "of both"
        )
    check_known(wish.tenants, {*cluster.tenants, DEFAULT}, "tenant")
    start_ns, end_ns = _span(wish, now_ns)
    wanted = ReservationSet(
        reservation=name,
        nodes=(),
        start_ns=start_ns,
        end_ns=end_ns,
        tenants=tuple(TenantId(tenant) for tenant in wish.tenants),
        users=wish.users,
        user=user,
    )
    fact = msgspec.structs.replace(wanted, nodes=_nodes(cluster, wish, wanted))
    check_fact_size(fact)
    return fact


def _span(wish: ReservationWish, now_ns: int) -> tuple[int, int]:
    lasts_s = duration_s(wish.duration, "duration")
    check_range("duration", lasts_s, 1, YEAR_S)
    start_ns = moment_ns(wish.start, "start") or now_ns
    end_ns = start_ns + lasts_s * SECOND_NS
    if end_ns <= now_ns or start_ns > now_ns + YEAR_S * SECOND_NS:
        raise Refused(
            f"start: {wish.start!r} for {wish.duration} is over already or begins in more "
            "than a year: give a time within a year"
        )
    return start_ns, end_ns


def _nodes(cluster: Cluster, wish: ReservationWish, wanted: ReservationSet) -> tuple[NodeId, ...]:
    if bool(wish.nodes) == bool(wish.count or wish.node_labels):
        raise Refused(
            "nodes: give the nodes by name, or how many (count) and their node_labels: one of both"
        )
    check_known(wish.nodes, cluster.nodes, "node")
    check_range("count", wish.count, *RANGES[0][1:])
    if not wish.nodes:
        return _some(cluster, wish, wanted)
    for node_id in wish.nodes:
        kept = None if wish.maintenance else _kept(cluster, NodeId(node_id), wanted)
        if kept is not None:
            until = f"from {rfc3339(kept.start_ns)} to {rfc3339(kept.end_ns)}"
            raise Problem(
                409,
                f"node {node_id} is kept for {kept.name} {until}: take another node or time",
                node=node_id,
            )
    return tuple(dict.fromkeys(NodeId(node_id) for node_id in wish.nodes))


def _some(cluster: Cluster, wish: ReservationWish, wanted: ReservationSet) -> tuple[NodeId, ...]:
    """The first that are usable, have the labels and are nobody's then; without a number all of
    them.
    """
    found = [
        node.node_id
        for node in _labelled(cluster, wish)
        if _kept(cluster, node.node_id, wanted) is None
    ]
    if not found or len(found) < wish.count:
        raise Refused(
            f"count: {len(found)} usable nodes have these labels and are nobody's at that "
            "time: ask for so many, or another time"
        )
    return tuple(found[: wish.count or NODES_MAX])


def _labelled(cluster: Cluster, wish: ReservationWish) -> Iterable[Node]:
    for node in cluster.nodes.values():
        if (
            node.takes_work
            and not is_leaving(cluster, node.node_id)
            and wish.node_labels.items() <= node.labels.items()
        ):
            yield node


def _kept(cluster: Cluster, node_id: NodeId, wanted: ReservationSet) -> Reservation | None:
    """Another that is not over before this one begins, nor begins after it."""
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
    """The fact for `DELETE /v1/reservations/{name}`. Raises Problem 404."""
    if name not in cluster.reservations:
        raise Problem(404, f"there is no reservation {name[:64]!r}: see muster reservations")
    return ReservationCleared(reservation=name, user=user)


def check(cluster: Cluster, spec: JobSpec, tenant: TenantId, user: str) -> None:
    """Whether a job may name its reservation.

    Raises Refused, and Denied 403 for one that is not for its tenant or user.
    """
    if spec.reservation:
        check_known([spec.reservation], cluster.reservations, "reservation")
        if not cluster.reservations[spec.reservation].is_for(spec, tenant, user):
            raise Denied(
                403,
                (
                    f"reservation {spec.reservation} is not for "
                    f"{user or 'a user without a name'} of tenant {tenant}: ask an operator"
                ),
            )
