"""Requests about reservations: accepted, or refused with the name of the field.

Some tests check which tenants may name a reservation.
"""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.model import TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.reservation import Reservation
from services.api_gateway.intents import reservation_intents as intents
from services.api_gateway.problems import Denied, Problem
from tests.given import SECOND_NS, given, registered, spec, tell

NOW = 1_790_000_000 * SECOND_NS
HOUR_NS = 3_600 * SECOND_NS


def cluster() -> Cluster:
    nodes = [
        registered("a", labels={"gpu": "h100"}),
        registered("b"),
        registered("c", labels={"gpu": "h100"}),
    ]
    return given(f.TenantSet(tenant=TenantId("red")), nodes).cluster


def wished(found: Cluster | None = None, name: str = "course", **wish: Any) -> f.ReservationSet:
    return intents.reservation(
        cluster=found or cluster(),
        body={"duration": "1h", **wish},
        name=name,
        user="root",
        now_ns=NOW,
    )


def test_nodes_are_kept_for_a_tenant_from_a_time_on() -> None:
    assert wished(
        nodes=["b", "b"], tenants=["red"], start="2026-12-24T18:00:00Z"
    ) == f.ReservationSet(
        reservation="course",
        nodes=("b",),
        start_ns=1_798_135_200 * SECOND_NS,
        end_ns=1_798_138_800 * SECOND_NS,
        tenants=("red",),
        user="root",
    )


def test_a_maintenance_begins_now_and_admits_no_job() -> None:
    found = wished(nodes=["a"], maintenance=True)
    assert (found.start_ns, found.end_ns, found.tenants, found.users) == (
        NOW,
        NOW + HOUR_NS,
        (),
        (),
    )


def test_a_reservation_for_a_user_is_for_that_user_of_one_tenant() -> None:
    fact = wished(nodes=["a"], users=["red/ada"])
    assert fact.users == ("red/ada",)
    found = cluster()
    tell(found, fact)
    kept = found.reservations["course"]
    assert kept.admits(TenantId("red"), "ada")
    assert not kept.admits(TenantId("blue"), "ada") and not kept.admits(TenantId("red"), "bob")
    assert not kept.admits(TenantId("blue"), "red/ada")


@pytest.mark.parametrize("user", ["ada", "/ada", "red/", ""])
def test_a_user_without_a_tenant_is_refused_where_there_are_several(user: str) -> None:
    with pytest.raises(Refused, match="write TENANT/USER, for example default/"):
        wished(nodes=["a"], users=[user])


def test_a_user_of_an_unknown_tenant_is_refused() -> None:
    with pytest.raises(Refused, match="tenant"):
        wished(nodes=["a"], users=["rod/ada"])


def test_where_there_is_one_tenant_the_name_of_a_user_is_enough() -> None:
    alone = given([registered("a")]).cluster
    assert wished(alone, nodes=["a"], users=["ada"]).users == ("default/ada",)


def test_a_reservation_of_an_earlier_version_is_for_the_user_of_every_tenant() -> None:
    kept = Reservation(name="course", nodes=(), start_ns=0, end_ns=1, users=("ada",))
    assert kept.admits(TenantId("red"), "ada") and kept.admits(TenantId("blue"), "ada")


def test_nodes_may_be_given_by_number_and_labels() -> None:
    assert wished(count=1, node_labels={"gpu": "h100"}, users=["red/ada"]).nodes == ("a",)
    assert wished(node_labels={"gpu": "h100"}, users=["red/ada"]).nodes == ("a", "c")
    assert wished(count=2, users=["red/ada"]).nodes == ("a", "b")
    with pytest.raises(Refused, match=r"3 nodes were asked for, and 2 usable nodes .* at most 2"):
        wished(count=3, node_labels={"gpu": "h100"}, users=["red/ada"])
    with pytest.raises(Refused, match="no usable node with these labels is free then"):
        wished(count=1, node_labels={"gpu": "none"}, users=["red/ada"])


def test_a_node_that_is_lost_is_not_chosen() -> None:
    found = cluster()
    found.nodes[next(iter(found.nodes))].state = "unreachable"
    assert wished(found, count=1, users=["red/ada"]).nodes == ("b",)


def test_node_has_one_reservation_at_a_time_but_maintenance_is_always_possible() -> None:
    found = cluster()
    found.reservations["other"] = intents.Reservation(
        "other", wished(nodes=["a"], users=["red/ada"]).nodes, NOW, NOW + HOUR_NS
    )
    with pytest.raises(Problem, match="node a is reserved by other"):
        wished(found, nodes=["a"], users=["red/ada"])
    assert wished(found, count=1, users=["red/ada"]).nodes == ("b",)
    assert wished(found, nodes=["a"], maintenance=True).nodes == ("a",)
    assert wished(found, name="other", nodes=["a"], users=["red/ada"]).nodes == ("a",)
    assert wished(found, nodes=["a"], users=["red/ada"], start="2027-01-01T00:00:00Z").nodes == (
        "a",
    )


def test_a_reservation_that_no_fact_holds_is_refused() -> None:
    with pytest.raises(Refused, match="over the bound"):
        wished(nodes=["a"], users=["red/" + "u" * 64_000 for _ in range(2)])


@pytest.mark.parametrize(
    ("wish", "said"),
    [
        ({"nodes": ["a"]}, "tenants"),
        ({"nodes": ["a"], "users": ["red/ada"], "maintenance": True}, "tenants"),
        ({"users": ["red/ada"]}, "nodes"),
        ({"users": ["red/ada"], "nodes": ["a"], "count": 1}, "nodes"),
        ({"users": ["red/ada"], "nodes": ["nope"]}, "node 'nope'"),
        ({"users": ["red/ada"], "count": -1}, "count"),
        ({"tenants": ["blue"], "nodes": ["a"]}, "tenant 'blue'"),
        ({"users": ["red/ada"], "nodes": ["a"], "duration": 0}, "duration"),
        ({"users": ["red/ada"], "nodes": ["a"], "start": "2020-01-01T00:00:00Z"}, "start"),
        ({"users": ["red/ada"], "nodes": ["a"], "start": "2099-01-01T00:00:00Z"}, "start"),
        ({"users": ["red/ada"], "nodes": ["a"], "speed": 1}, "field 'speed'"),
    ],
)
def test_meaningless_field_is_refused_with_its_name(wish: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused, match=said):
        wished(**wish)


@pytest.mark.parametrize("body", [None, {}, {"nodes": ["a"]}])
def test_a_reservation_has_a_length_and_a_name(body: object) -> None:
    with pytest.raises(Refused, match="duration"):
        intents.reservation(cluster=cluster(), body=body, name="course", user="root", now_ns=NOW)
    with pytest.raises(Refused, match="reservation"):
        intents.reservation(
            cluster=cluster(), body=body, name="Not A Name", user="root", now_ns=NOW
        )


@pytest.mark.parametrize("start", ["9h", "in 9h", "09:00", "90"])
def test_start_that_is_not_a_date_and_time_is_refused(start: str) -> None:
    with pytest.raises(Refused, match=r"start: .* is not a date and time: write RFC 3339"):
        wished(nodes=["a"], users=["red/ada"], start=start)


@pytest.mark.parametrize(
    "start, duration", [("9999-12-31T00:00:00Z", "365d"), ("0001-01-01T00:00:00+14:00", "1h")]
)
def test_a_start_in_a_far_year_is_refused(start: str, duration: str) -> None:
    with pytest.raises(Refused, match="start:"):
        wished(nodes=["a"], tenants=["red"], start=start, duration=duration)


def test_clearing_an_unknown_reservation_is_refused() -> None:
    found = cluster()
    with pytest.raises(Problem, match="does not exist"):
        intents.clearance(found, "course", "root")
    found.reservations["course"] = intents.Reservation("course", (), 0, 1)
    assert intents.clearance(found, "course", "root") == f.ReservationCleared(
        reservation="course", user="root"
    )


def test_a_job_names_a_reservation_that_is_for_it() -> None:
    found = cluster()
    found.reservations["course"] = intents.Reservation(
        name="course", nodes=(), start_ns=0, end_ns=1, tenants=(TenantId("red"),), users=("ada",)
    )
    job = spec(reservation="course")
    intents.check(found, spec(), TenantId("blue"), "bob")
    intents.check(found, job, TenantId("red"), "bob")
    intents.check(found, job, TenantId("blue"), "ada")
    with pytest.raises(Denied, match="not for bob of tenant blue"):
        intents.check(found, job, TenantId("blue"), "bob")
    with pytest.raises(Refused, match="reservation"):
        intents.check(found, spec(reservation="cours"), TenantId("red"), "")
