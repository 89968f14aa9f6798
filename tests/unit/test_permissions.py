"""The lists by themselves: one writer a subject, nothing that could undo the log, answers only to
those who may ask.
"""

import pytest

from libs.common import subjects as s
from libs.common.transport.kv import earlier_output_key, output_key
from libs.embedded import permissions
from libs.embedded.permissions import Allowed, Fleet

TOGETHER = Fleet(nodes=("1", "2"), gateways=("a", "b"))
ISOLATED = Fleet(nodes=TOGETHER.nodes, gateways=TOGETHER.gateways, isolated=True)


def everyone(fleet: Fleet) -> dict[str, Allowed]:
    return permissions.core(fleet) | {
        permissions.node_name(node_id): permissions.node(node_id, fleet) for node_id in fleet.nodes
    }


def covers(pattern: str, subject: str) -> bool:
    """As the server matches: `*` one token, `>` the rest."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        wanted, given = wanted[:-1], given[: len(wanted) - 1] if len(given) >= len(wanted) else []
    return len(wanted) == len(given) and all(
        a in ("*", b) for a, b in zip(wanted, given, strict=True)
    )


def speakers(fleet: Fleet, subject: str) -> list[str]:
    return [
        name
        for name, allowed in everyone(fleet).items()
        if any(covers(each, subject) for each in allowed.publish)
    ]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_each_facts_subject_has_one_writer(fleet: Fleet) -> None:
    assert speakers(fleet, s.SCHEDULER) == ["scheduler"]
    assert speakers(fleet, s.QUOTA) == ["quota"]
    assert speakers(fleet, s.gateway("a")) == ["gateway-a"]
    assert speakers(fleet, s.node("2")) == ["node-2"]
    assert speakers(fleet, "facts.other") == []


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_node_writes_keys_of_its_own_output_only(fleet: Fleet) -> None:
    assert speakers(
        fleet,
        f"$KV.OUTPUT.{output_key(node_id='2', job_id='job-a', attempt=1, rank=0, stream='stdout')}",
    ) == ["node-2"]
    assert speakers(fleet, f"$KV.OUTPUT.{earlier_output_key('2', 1, 0, 'stdout')}") == []
    assert speakers(fleet, "$JS.API.STREAM.UPDATE.KV_OUTPUT") == ["scheduler", "keeper"]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_only_the_scheduler_orders_and_only_a_node_sends_its_heartbeat(fleet: Fleet) -> None:
    assert speakers(fleet, s.orders("1")) == ["scheduler"]
    assert speakers(fleet, s.heartbeat("1")) == ["node-1"]
    assert speakers(fleet, s.outstanding("a")) == ["gateway-a"]
    assert speakers(fleet, s.turns("a")) == ["gateway-a"]
    assert not [
        name for name in speakers(fleet, s.ask_node("1", "answered")) if name.startswith("node")
    ]
    assert speakers(fleet, s.desired("2")) == ["node-2"]
    assert speakers(fleet, s.roster("2")) == ["node-2"]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
@pytest.mark.parametrize("service", ["scheduler", "quota", "audit"])
def test_only_processes_of_a_service_hand_over_its_lead(fleet: Fleet, service: str) -> None:
    assert speakers(fleet, s.take_over(service)) == [service]
    assert [
        name
        for name, allowed in everyone(fleet).items()
        if any(covers(each, s.take_over(service)) for each in allowed.subscribe)
    ] == [service]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
@pytest.mark.parametrize(
    "verb",
    ["STREAM.PURGE", "STREAM.DELETE", "STREAM.UPDATE", "STREAM.MSG.DELETE", "STREAM.RESTORE"],
)
def test_only_the_trimmer_may_purge_the_log_and_only_the_keeper_change_its_replicas(
    fleet: Fleet, verb: str
) -> None:
    may = {"STREAM.PURGE": ["trimmer"], "STREAM.UPDATE": ["keeper"]}
    assert speakers(fleet, f"$JS.API.{verb}.FACTS") == may.get(verb, [])


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_only_the_scheduler_creates_streams_except_for_buckets_of_snapshots(
    fleet: Fleet,
) -> None:
    made = {
        stream: speakers(fleet, f"$JS.API.STREAM.CREATE.{stream}")
        for stream in (*permissions.STREAMS, "OTHER")
    }
    snapshots = {permissions.SNAPSHOT_STREAM: ["scheduler", "trimmer", "gateway-a", "gateway-b"]}
    assert (
        made
        == {stream: ["scheduler"] for stream in permissions.STREAMS} | {"OTHER": []} | snapshots
    )


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_only_audit_creates_and_writes_its_streams(fleet: Fleet) -> None:
    for stream in permissions.AUDIT_STREAMS:
        assert speakers(fleet, f"$JS.API.STREAM.CREATE.{stream}") == ["audit"]
        assert [
            speakers(fleet, f"$JS.API.STREAM.{verb}.{stream}")
            for verb in ("PURGE", "DELETE", "MSG.DELETE")
        ] == [[]] * 3
        assert speakers(fleet, f"$JS.API.STREAM.UPDATE.{stream}") == ["keeper"]
        assert speakers(fleet, f"$JS.API.CONSUMER.CREATE.{stream}") == ["operator"]
    assert speakers(fleet, s.AUDIT_EVENTS) == speakers(fleet, s.AUDIT_HEADS) == ["audit"]


def test_isolated_node_may_read_only_its_own_last_message() -> None:
    allowed = permissions.node("1", ISOLATED).publish
    reads = [each for each in allowed if each.startswith(permissions.API)]
    assert reads == ["$JS.API.DIRECT.GET.FACTS.facts.node.1"]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_no_process_may_read_another_processs_inbox(fleet: Fleet) -> None:
    for name in permissions.names(fleet):
        hears = [
            other
            for other, allowed in everyone(fleet).items()
            if any(covers(e, f"_INBOX_{name}.x.y") for e in allowed.subscribe)
        ]
        assert hears == [name]


@pytest.mark.parametrize("fleet", [TOGETHER, ISOLATED])
def test_every_process_has_lists(fleet: Fleet) -> None:
    assert sorted(everyone(fleet)) == sorted(permissions.names(fleet))
