"""The variables of jobs that share a device, by vendor, and their masks of compute units."""

import pytest

from libs.common.errors import Refused
from libs.common.model import MIG, MPS, Gpu, GpuHold, GpuId
from services.node_agent.sharing import ways

GIB = 1 << 30


def gpu(index: int, vendor: str = "nvidia", memory_bytes: int = 80 * GIB) -> Gpu:
    return Gpu(
        uuid=GpuId(f"G{index}"),
        index=index,
        vendor=vendor,
        model="model",
        memory_bytes=memory_bytes,
    )


def part(index: int, share: int = 50, isolation: str = MPS) -> GpuHold:
    return GpuHold(GpuId(f"G{index}"), share, isolation)


@pytest.mark.parametrize(
    ("vendor", "way"), [("nvidia", "mps"), ("amd", "cu_mask"), ("simulated", "simulated")]
)
def test_each_vendor_has_its_own_way(vendor: str, way: str) -> None:
    assert ways.way_of([part(0)], [gpu(0, vendor)]) == way


def test_jobs_without_isolation_and_mig_jobs_get_no_way() -> None:
    assert (
        ways.way_of([part(0, isolation="")], [gpu(0)])
        == ways.way_of([part(0, isolation=MIG)], [gpu(0)])
        == ""
    )
    assert ways.way_of([], []) == ""


@pytest.mark.parametrize("held", [[gpu(0, "intel")], [gpu(0), gpu(1, "amd")], []])
def test_job_on_devices_that_cannot_be_shared_is_refused(held: list[Gpu]) -> None:
    with pytest.raises(Refused, match="isolation mps is not available on GPUs of"):
        ways.way_of([part(0), part(1)], held)


def test_a_daemon_is_of_one_tenant_one_user_and_one_set_of_devices() -> None:
    one = ways.daemon_name("t", "u", [GpuId("a"), GpuId("b")])
    assert one == ways.daemon_name("t", "u", [GpuId("b"), GpuId("a")])
    assert (
        len(
            {
                one,
                *(
                    ways.daemon_name(*each)
                    for each in (("x", "u", ["a", "b"]), ("t", "x", ["a", "b"]), ("t", "u", ["a"]))
                ),
            }
        )
        == 4
    )  # type: ignore[arg-type]


def test_share_limits_threads_and_memory_by_the_daemons_device_numbers() -> None:
    told = ways.mps_variables(
        "/m", [part(1, 25), part(0, 25)], [gpu(1, memory_bytes=40 * GIB), gpu(0)], 0
    )
    assert told == {
        "CUDA_MPS_PIPE_DIRECTORY": "/m/pipe",
        "CUDA_MPS_LOG_DIRECTORY": "/m/log",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=20480M,1=10240M",
        "CUDA_VISIBLE_DEVICES": "G0,G1",
    }
    assert (
        ways.daemon_variables("/m", [GpuId("G1"), GpuId("G0")])["CUDA_VISIBLE_DEVICES"] == "G0,G1"
    )


def test_requested_memory_is_the_limit_and_unknown_memory_sets_none() -> None:
    asked = ways.mps_variables("/m", [part(0, 13)], [gpu(0)], 10 * GIB)
    assert asked["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=10240M"
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in ways.mps_variables(
        "/m", [part(0)], [gpu(0, memory_bytes=0)], 0
    )


def test_masks_are_set_per_device_and_for_hip_only_if_they_are_equal() -> None:
    held = [gpu(1, "amd"), gpu(0, "amd")]
    assert ways.mask_variables({GpuId("G0"): "f", GpuId("G1"): "f0"}, held) == {
        "HSA_CU_MASK": "0:0xf0;1:0xf"
    }
    assert ways.mask_variables({GpuId("G0"): "f"}, held[1:]) == {
        "HSA_CU_MASK": "0:0xf",
        "ROC_GLOBAL_CU_MASK": "0xf",
    }


def test_compute_units_follow_the_share_and_belong_to_one_job() -> None:
    first = ways.allotted(10, 30, [])
    second = ways.allotted(10, 50, [first])
    third = ways.allotted(10, 20, [first, second])
    assert (first, second, third) == ("7", "f8", "300")
    assert ways.allotted(10, 30, [second, third]) == first
    assert ways.allotted(10, 5, []) == "1"
    with pytest.raises(Refused, match="fewer than 2 of the device's 10 are free"):
        ways.allotted(10, 20, [first, second, "200"])
