"""The devices that can be checked for remains of an ended attempt."""

from msgspec.structs import replace

from libs.common.model import MIG, GpuHold, GpuId
from services.node_agent.core import observations as o
from services.node_agent.devices.attempts import can_be_checked, undivided
from tests.given_node import GPU, Node, start

OTHER = GpuId("GPU-n-1")


def test_device_can_be_checked_beside_instances_but_not_beside_a_whole_device_job() -> None:
    made = Node()
    made.orders(
        replace(
            start("part"),
            gpus=(
                GpuHold(
                    uuid=GPU, share=50, isolation=MIG, mig_profile="3g.40gb", mig_slices=0b1111
                ),
            ),
        ),
        replace(start("whole"), gpus=(GpuHold(OTHER),)),
    )
    assert (
        can_be_checked(made.state, [GPU, OTHER]) == [GPU]
        and undivided(made.state, [GPU, OTHER]) == []
    )
    made.see(o.LaunchFailed("whole.1", "no"))
    assert can_be_checked(made.state, [GPU, OTHER]) == [GPU, OTHER]
