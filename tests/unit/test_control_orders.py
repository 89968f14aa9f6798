"""The scheduler's control orders to a node contain the wished controls and those in force only."""

from libs.common import facts as f
from libs.common.messages import ControlOrder
from libs.common.model import GpuId, NodeId
from services.scheduler.orders.orders import control_orders, controls_of
from tests.given import given, registered, tell

NODE, GPU = NodeId("a"), GpuId("a-gpu0")
WISH = f.GpuControlRequested(uuid=GPU, control="power", value="300", user="ada")


def test_a_wish_is_ordered_once_the_log_has_it_of_a_node_that_hears_it() -> None:
    for hears in (True, False):
        cluster = given(registered("a", takes_controls=hears)).cluster
        tell(cluster, WISH, seq=7)
        ordered = [ControlOrder(GPU, "power", "300", 7)] if hears else []
        assert list(controls_of(cluster, NODE)) == ordered
        assert list(control_orders(cluster, [WISH], 7)) == [(NODE, order) for order in ordered]
        assert list(control_orders(cluster, [WISH], 6)) == []


def test_control_that_a_node_failed_to_restore_is_not_ordered_again() -> None:
    cluster = given(registered("a", takes_controls=True)).cluster
    tell(
        cluster,
        f.GpuControlled(
            node_id=NODE,
            uuid=GPU,
            control="power",
            value="200",
            request=0,
            outcome="failed",
            detail="no",
        ),
    )
    assert list(controls_of(cluster, NODE)) == []
