"""Holders and shares of each device: never more than the whole, and returned once."""

import pytest

from libs.common.model import MIG, MPS, GpuHold, GpuId, NodeId, TenantId
from libs.common.state import ledger
from tests.history import (
    History,
    begun,
    finished,
    job,
    lost,
    member,
    placed,
    registered,
    released,
    requeued,
    started,
)


def two_devices() -> History:
    """n1 with n1g1 and n1g2, n2 with n2g1 and n2g2; jobs a and b are queued."""
    history = begun(nodes=2, gpus=2)
    history.queue("a")
    history.queue("b")
    return history


def held(history: History) -> int:
    return history.cluster.tenants[TenantId("default")].held_share


def wish(*shares: int) -> list[GpuHold]:
    return [GpuHold(GpuId(f"n1g{number}"), share) for number, share in enumerate(shares, 1)]


def end(history: History, name: str, node: str, attempt: int = 1) -> None:
    assert history.say(
        started(name, node, attempt),
        finished(name, node, 0, attempt),
        released(name, node, attempt),
    )


def test_a_placement_holds_its_shares_for_its_attempt() -> None:
    history = two_devices()
    assert history.say(placed("a", member("n1", "n1g1", "n1g2", share=40)))
    assert (history.holds("n1g1"), history.holds("n1g2"), held(history)) == (
        {"a.1": 40},
        {"a.1": 40},
        80,
    )


def test_shares_of_one_device_add_up_to_the_whole_and_no_further() -> None:
    history = two_devices()
    history.queue("c")
    assert history.say(placed("a", member("n1", "n1g1", share=60)))
    assert not history.say(placed("b", member("n1", "n1g1", share=41)))
    assert history.say(placed("b", member("n1", "n1g1", share=40)))
    assert not history.say(placed("c", member("n1", "n1g1", share=1)))
    assert history.holds("n1g1") == {"a.1": 60, "b.1": 40}


@pytest.mark.parametrize(
    ("shares", "fits"),
    [
        ((100,), True),
        ((1, 100), True),
        ((0,), False),
        ((-1,), False),
        ((101,), False),
        ((50, 50, 50), False),
    ],
)
def test_a_share_is_a_part_of_a_known_device(shares: tuple[int, ...], fits: bool) -> None:
    assert ledger.can_hold(two_devices().cluster, wish(*shares)) is fits


def test_a_device_is_named_once_in_an_attempt() -> None:
    history = two_devices()
    assert not history.say(placed("a", member("n1", "n1g1", "n1g1", share=10)))
    assert not history.say(
        placed("a", member("n1", "n1g1", share=10), member("n2", "n1g1", rank=1, share=10))
    )


def test_a_placement_that_does_not_fit_everywhere_holds_nothing() -> None:
    history = two_devices()
    assert history.say(placed("a", member("n2", "n2g1")))
    assert not history.say(placed("b", member("n1", "n1g1"), member("n2", "n2g1", rank=1)))
    assert (history.holds("n1g1"), held(history)) == ({}, 100)


def test_a_placement_holds_a_device_that_moved_to_another_node_meanwhile() -> None:
    """The scheduler folded its placement ahead of the registration: both ways round must end the
    same.
    """
    ahead, behind = two_devices(), two_devices()
    placement, moved = (
        placed("a", member("n1", "n1g1")),
        registered("n2", "n2g1", "n1g1", incarnation=2),
    )
    assert ahead.say(placement) and ahead.say(moved)
    assert behind.say(moved) and behind.say(placement)
    assert ahead.holds("n1g1") == behind.holds("n1g1") == {"a.1": 100}
    end(behind, "a", "n1")
    assert (behind.holds("n1g1"), held(behind)) == ({}, 0)


def test_a_release_frees_only_its_own_attempt() -> None:
    history = two_devices()
    assert history.say(
        placed("a", member("n1", "n1g1", share=50)), placed("b", member("n1", "n1g1", share=50))
    )
    end(history, "a", "n1")
    assert (history.holds("n1g1"), held(history)) == ({"b.1": 50}, 50)


def test_a_second_release_frees_nothing() -> None:
    history = two_devices()
    assert history.say(placed("a", member("n1", "n1g1")))
    end(history, "a", "n1")
    assert history.say(placed("b", member("n1", "n1g1")))
    assert not history.say(released("a", "n1"))
    assert (history.holds("n1g1"), held(history)) == ({"b.1": 100}, 100)


def test_a_release_of_an_older_attempt_frees_nothing_of_the_newer() -> None:
    history = two_devices()
    assert history.say(placed("a", member("n1", "n1g1")))
    end(history, "a", "n1")
    assert history.say(requeued("a"), placed("a", member("n1", "n1g1"), attempt=2))
    assert not history.say(released("a", "n1", attempt=1))
    assert (history.holds("n1g1"), held(history)) == ({"a.2": 100}, 100)


def test_a_lost_node_s_devices_are_given_back_once() -> None:
    history = two_devices()
    assert history.say(placed("a", member("n1", "n1g1")), started("a", "n1"), lost("n1"))
    assert (history.holds("n1g1"), held(history)) == ({}, 0)
    history.say(released("a", "n1"))
    assert held(history) == 0
    assert history.job("a").members[history.cluster.nodes["n1"].node_id].state == "lost"  # type: ignore[index]
    assert history.cluster.jobs[job("a")].state == "releasing"


def test_parts_that_are_kept_apart_in_different_ways_are_never_on_one_device() -> None:
    cluster = two_devices().cluster
    view = cluster.gpus[GpuId("n1g1")]
    view.holds["a.1"], view.parts["a.1"] = 50, GpuHold(GpuId("n1g1"), 50, MPS)
    assert ledger.can_hold(cluster, [GpuHold(GpuId("n1g1"), 50, MPS)])
    assert not ledger.can_hold(cluster, [GpuHold(GpuId("n1g1"), 50)])
    assert not ledger.can_hold(
        cluster,
        [GpuHold(uuid=GpuId("n1g1"), share=12, isolation=MIG, mig_profile="1g.10gb", mig_slices=1)],
    )
    view.parts.clear()
    assert not ledger.can_hold(cluster, [GpuHold(GpuId("n1g1"), 50, MPS)])


def test_a_slice_of_a_device_is_in_one_mig_instance_only() -> None:
    cluster = two_devices().cluster
    view = cluster.gpus[GpuId("n1g1")]
    view.holds["a.1"], view.parts["a.1"] = (
        12,
        GpuHold(uuid=GpuId("n1g1"), share=12, isolation=MIG, mig_profile="1g.10gb", mig_slices=0b1),
    )
    assert not ledger.can_hold(
        cluster,
        [
            GpuHold(
                uuid=GpuId("n1g1"),
                share=50,
                isolation=MIG,
                mig_profile="3g.40gb",
                mig_slices=0b1111,
            )
        ],
    )
    assert ledger.can_hold(
        cluster,
        [
            GpuHold(
                uuid=GpuId("n1g1"),
                share=50,
                isolation=MIG,
                mig_profile="3g.40gb",
                mig_slices=0b1111_0000,
            )
        ],
    )


def test_a_part_of_the_host_is_held_with_the_devices_and_given_back_with_them() -> None:
    history = begun()
    history.queue("a", cpus_milli=4_000, memory_bytes=1 << 30)
    assert history.say(placed("a", member("n1", "n1g1")))
    assert history.cluster.nodes[NodeId("n1")].held == {"a.1": (4_000, 1 << 30)}
    end(history, "a", "n1")
    assert history.cluster.nodes[NodeId("n1")].held == {}
