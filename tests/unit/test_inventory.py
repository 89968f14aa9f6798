"""The inventory: every device, what of it is free, in pages that add up to the whole."""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.model import NodeId
from libs.common.state import inventory as stock
from libs.common.state.cluster import Cluster
from libs.common.state.inventory import Inventory, Stocks
from libs.common.transport.bus import MESSAGE_BYTES_MAX
from tests.given import given, member, placed, registered, waiting


def inventory(cluster: Cluster, after: str = "", stocks: Stocks | None = None) -> Inventory:
    return msgspec.json.decode((stocks or Stocks()).answer(cluster, after), type=Inventory)


def test_it_says_of_every_device_how_much_of_it_is_free() -> None:
    faulted = f.GpuFaulted(
        node_id=NodeId("b"), uuid=member("b", 1).gpus[0].uuid, health="offline", reason="xid"
    )
    held = [
        *waiting("i"),
        placed("i", member("a", 0)),
        *waiting("j", gpu_share=30),
        placed("j", member("b", 0, share=30)),
    ]
    drained = f.GpuServiceSet(uuid=member("a", 1).gpus[0].uuid, service="draining", user="u")
    found = inventory(
        given(registered("a", gpus=2), registered("b", gpus=2), held, faulted, drained).cluster
    )
    assert [(node.id, node.state) for node in found.nodes] == [("a", "healthy"), ("b", "degraded")]
    assert [node.model for node in found.nodes] == ["Simulated H100", "Simulated H100"]
    assert [node.gpus for node in found.nodes] == [
        [("a-gpu0", "healthy", 0), ("a-gpu1", "draining", 100)],
        [("b-gpu0", "healthy", 70), ("b-gpu1", "offline", 100)],
    ]
    assert found.next is None


def test_answers_larger_than_one_message_come_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = given(*(registered(name) for name in "abcde")).cluster
    monkeypatch.setattr(stock, "DEVICES_MAX", 9)
    pages, after = [], ""
    while True:
        page = inventory(cluster, after)
        pages.append([str(node.id) for node in page.nodes])
        if page.next is None:
            break
        after = page.next
    assert pages == [["a", "b"], ["c", "d"], ["e"]]


def test_a_node_that_was_removed_is_not_there_and_its_page_goes_on_behind_it() -> None:
    cluster = given(*(registered(name) for name in "abc")).cluster
    cluster.nodes[NodeId("b")].state = "removed"
    assert [node.id for node in inventory(cluster).nodes] == ["a", "c"]
    assert [node.id for node in inventory(cluster, "b").nodes] == ["c"]


def test_one_answer_s_devices_fit_into_one_message() -> None:
    row = ("GPU-" + "0" * 36, "resetting", 100)
    per_device = len(msgspec.json.encode(row)) + 1
    per_node = len(
        msgspec.json.encode(
            stock.NodeStock(NodeId("n" * 32), "unreachable", "NVIDIA H100 80GB HBM3", [])
        )
    )
    assert stock.DEVICES_MAX * per_device + stock.DEVICES_MAX // 8 * per_node < MESSAGE_BYTES_MAX
