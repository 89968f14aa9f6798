"""What the log's servers tell, and whether one of them may be stopped."""

import msgspec
import pytest

from libs.common.messages.server_messages import Replica, ServerStatus
from libs.common.replacement import MIB, SPARE_BYTES, holds_all
from libs.embedded.space_watch import START_BYTES
from services.api_gateway.views.log_servers import (
    bus_shown,
    faults,
    growth_refusal,
    names,
    refusal,
)

NAMES = ("nats-1", "nats-2", "nats-3")


def replica(**changes: int) -> Replica:
    found = Replica("FACTS", "nats-1", NAMES, commits=10, bytes=1_000, first=1, last=10)
    return msgspec.structs.replace(found, **changes)


def status(server: str, health: str = "good", *reasons: str, **changes: int) -> ServerStatus:
    return ServerStatus(
        server=server,
        process_id=f"{server} first",
        health=health,
        reasons=reasons,
        free_bytes=1 << 30,
        replicas=(replica(**changes),),
    )


def healthy(*servers: str) -> list[ServerStatus]:
    return [status(server) for server in servers]


def test_healthy_servers_have_no_faults_and_each_may_be_stopped() -> None:
    told = healthy(*NAMES)
    assert faults(told) == []
    for server in NAMES:
        assert refusal(told, server, replace=False) == refusal(told, server, replace=True) == ""


def test_server_that_says_nothing_is_named_by_the_others_and_nothing_is_stopped() -> None:
    told = healthy("nats-1", "nats-2")
    assert names(told) == list(NAMES)
    assert faults(told) == ["server nats-3 does not answer"]
    assert "nats-3 does not answer" in refusal(told, "nats-1", replace=False)
    assert "cannot be told to stop" in refusal(told, "nats-3", replace=True)
    shown = bus_shown(told).servers[2]
    assert (shown.name, shown.health, shown.streams) == ("nats-3", "silent", [])


def test_unhealthy_server_may_be_replaced_but_no_other_may_be_stopped() -> None:
    told = [*healthy("nats-1", "nats-2"), status("nats-3", "lost", "write error")]
    assert refusal(told, "nats-3", replace=True) == ""
    assert "nats-3 is not healthy: write error" in refusal(told, "nats-2", replace=False)
    (fault,) = faults([status("nats-1", "waits"), *healthy("nats-2", "nats-3")])
    assert fault == "server nats-1 is not healthy: it gives no reason"


def test_unknown_server_is_not_stopped() -> None:
    assert "servers: nats-1, nats-2, nats-3" in refusal(healthy(*NAMES), "nats-9", replace=False)
    assert "servers: none" in refusal([], "nats-9", replace=False)


def test_only_server_is_restarted_but_not_replaced() -> None:
    told = [ServerStatus("nats-server", "first", "good")]
    assert refusal(told, "nats-server", replace=False) == ""
    assert "the only server" in refusal(told, "nats-server", replace=True)


def test_replicas_that_differ_up_to_the_same_sequence_are_named() -> None:
    told = [*healthy("nats-1", "nats-2"), status("nats-3", commits=9, bytes=900)]
    (fault,) = faults(told)
    assert "FACTS differs up to sequence 10" in fault
    assert "nats-3 has 9 with 900" in fault
    assert refusal(told, "nats-1", replace=False)
    assert refusal(told, "nats-3", replace=True) == ""


def test_replica_that_is_behind_is_no_fault_and_shows_by_how_much() -> None:
    told = [*healthy("nats-1", "nats-2"), status("nats-3", commits=7, bytes=700, last=7)]
    assert faults(told) == []
    shown = bus_shown(told).servers
    assert [each.streams[0].behind for each in shown] == [0, 0, 3]
    assert [each.streams[0].leads for each in shown] == [True, False, False]


def test_streams_get_more_replicas_only_on_as_many_healthy_servers() -> None:
    assert growth_refusal(healthy(*NAMES), 3) == ""
    assert "there are 3 servers (nats-1, nats-2, nats-3)" in growth_refusal(healthy(*NAMES), 5)
    assert "0 servers (none)" in growth_refusal([], 3)
    assert "nats-3 does not answer" in growth_refusal(healthy("nats-1", "nats-2"), 3)


def test_server_is_not_emptied_while_another_one_is_behind_it() -> None:
    told = [*healthy("nats-1", "nats-2"), status("nats-3", commits=7, bytes=700, last=7)]
    why = refusal(told, "nats-1", replace=True)
    assert "nats-3 is behind: it has stream FACTS up to sequence 7, and nats-1 up to 10" in why
    assert refusal(told, "nats-1", replace=False) == ""
    assert refusal(told, "nats-3", replace=True) == ""


def test_server_that_alone_stores_a_stream_is_not_emptied() -> None:
    only = replica()
    only = msgspec.structs.replace(only, servers=("nats-1",))
    told = [
        msgspec.structs.replace(status("nats-1"), replicas=(only,)),
        *(msgspec.structs.replace(status(name), replicas=()) for name in ("nats-2", "nats-3")),
    ]
    why = refusal(told, "nats-1", replace=True)
    assert "stream FACTS is stored on nats-1 only: give it three replicas first" in why
    assert refusal(told, "nats-2", replace=True) == ""


def test_server_is_not_emptied_before_the_one_that_was_emptied_last_is_full_again() -> None:
    empty = msgspec.structs.replace(status("nats-3"), replicas=())
    why = refusal([*healthy("nats-1", "nats-2"), empty], "nats-1", replace=True)
    assert "nats-3 does not store stream FACTS yet" in why
    assert refusal([*healthy("nats-1", "nats-2"), empty], "nats-3", replace=True) == ""


def test_status_of_a_process_of_an_earlier_version_is_understood() -> None:
    raw = msgspec.msgpack.encode({"server": "nats-1", "life": "first", "health": "good"})
    told = msgspec.msgpack.decode(raw, type=ServerStatus)
    assert bus_shown([told]).servers[0].process_id == "first"


def test_server_is_not_emptied_on_a_disk_without_space_for_a_second_store() -> None:
    held = 1_000 * MIB
    full = msgspec.structs.replace(status("nats-3"), free_bytes=held + SPARE_BYTES - 1)
    others = [status(name, bytes=held) for name in ("nats-1", "nats-2")]
    why = refusal([*others, full], "nats-3", replace=True)
    assert "nats-3 has 1127 MiB free" in why and "needs 1128 MiB: free space on it" in why
    assert refusal([*others, full], "nats-3", replace=False) == ""
    enough = msgspec.structs.replace(full, free_bytes=held + SPARE_BYTES)
    assert refusal([*others, enough], "nats-3", replace=True) == ""
    assert SPARE_BYTES >= START_BYTES


@pytest.mark.parametrize(
    ("told", "is_full"),
    [
        (healthy(*NAMES), True),
        ([*healthy("nats-1", "nats-2"), status("nats-3", last=11)], True),
        ([*healthy("nats-1", "nats-2"), status("nats-3", last=9)], False),
        ([*healthy("nats-1", "nats-2"), status("nats-3", "waits")], False),
        (healthy("nats-1", "nats-3"), False),
        (healthy("nats-1", "nats-2"), False),
        ([*healthy("nats-1", "nats-2"), ServerStatus("nats-3", "second", "good")], False),
        ([ServerStatus("nats-3", "second", "good")], False),
    ],
    ids=["same", "ahead", "behind", "unhealthy", "another silent", "silent", "empty", "alone"],
)
def test_server_holds_the_whole_log_when_no_other_has_more(
    told: list[ServerStatus], is_full: bool
) -> None:
    assert holds_all(told, "nats-3") is is_full


def test_server_that_lacks_a_whole_stream_does_not_hold_everything() -> None:
    second = msgspec.structs.replace(replica(), stream="KV_snapshots")
    others = [
        msgspec.structs.replace(status(name), replicas=(replica(), second))
        for name in ("nats-1", "nats-2")
    ]
    assert not holds_all([*others, status("nats-3")], "nats-3")
    assert holds_all([*others, status("nats-3")], "nats-2")
    filled = msgspec.structs.replace(status("nats-3"), replicas=(replica(), second))
    assert holds_all([*others, filled], "nats-3")
