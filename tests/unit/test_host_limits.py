"""Host resources of a job: its requested CPUs and memory.

They are near its devices where the topology is known and enough CPUs are there.
"""

from functools import partial
from pathlib import Path

from libs.common.messages import StartOrder
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec
from services.node_agent.drivers.sysfs import Numa, device_nodes, numas
from services.node_agent.jobs.limits import limits_of
from services.node_agent.machine.cgroups import Limits
from tests.drivers import trees

GIB = 1 << 30
HERE = {0: Numa((0, 1), 8 * GIB), 1: Numa((2, 3), 8 * GIB)}
GPUS = [
    Gpu(
        uuid=GpuId(f"GPU-{index}"),
        index=index,
        vendor="nvidia",
        model="M",
        memory_bytes=GIB,
        numa=index - 1,
    )
    for index in range(3)
]


def order(*gpus: int, cpus_milli: int = 0, memory_bytes: int = 0) -> StartOrder:
    spec = JobSpec(command=("true",), cpus_milli=cpus_milli, memory_bytes=memory_bytes)
    return StartOrder(
        job_id=JobId("j"),
        attempt=1,
        incarnation=1,
        seq=1,
        rank=0,
        gpus=tuple(GpuHold(GPUS[gpu].uuid) for gpu in gpus),
        spec=spec,
        tenant="t",
        user="u",
        peers=(),
        port=0,
    )


def test_a_job_is_bound_to_what_it_asked_for() -> None:
    assert limits_of(order(cpus_milli=1_500, memory_bytes=GIB), GPUS, {}, {}) == Limits(
        cpus_milli=1_500, memory_bytes=GIB, cpus="", memory_nodes="", denied=[]
    )


def test_its_processors_lie_beside_its_devices_and_its_memory_only_where_it_said_how_much() -> None:
    assert limits_of(order(2), GPUS, HERE, {}) == Limits(
        cpus_milli=0, memory_bytes=0, cpus="2,3", memory_nodes="", denied=[]
    )
    assert limits_of(order(2, memory_bytes=GIB), GPUS, HERE, {})["memory_nodes"] == "1"
    assert limits_of(order(1, 2, memory_bytes=16 * GIB), GPUS, HERE, {}) == Limits(
        cpus_milli=0, memory_bytes=16 * GIB, cpus="0,1,2,3", memory_nodes="0,1", denied=[]
    )


def test_unknown_or_insufficient_topology_binds_no_cpus() -> None:
    assert limits_of(order(2, cpus_milli=3_000), GPUS, HERE, {})["cpus"] == ""
    assert limits_of(order(2, memory_bytes=9 * GIB), GPUS, HERE, {})["memory_nodes"] == ""
    for unknown in (order(0), order(0, 1), order()):  # GPU-0 lies nowhere: -1 is not node 0
        assert limits_of(unknown, GPUS, HERE, {})["cpus"] == ""
    assert limits_of(order(1), GPUS, {}, {})["cpus"] == ""


def test_a_job_is_denied_every_device_but_its_own_and_what_it_shares_with_another() -> None:
    nodes = {
        GPUS[0].uuid: ((195, 0), (226, 128)),
        GPUS[1].uuid: ((195, 1),),
        GPUS[2].uuid: ((195, 1), (195, 2)),
    }
    assert limits_of(order(1), GPUS, {}, nodes)["denied"] == [[195, 0], [195, 2], [226, 128]]
    assert limits_of(order(0, 1, 2), GPUS, {}, nodes)["denied"] == []
    assert limits_of(order(), GPUS, {}, nodes)["denied"] == [
        [195, 0],
        [195, 1],
        [195, 2],
        [226, 128],
    ]


def test_the_kernel_says_by_what_a_device_is_opened(tmp_path: Path) -> None:
    for path, text in (
        ("sys/bus/pci/devices/0000:1b:00.0/drm/card1/dev", "226:1\n"),
        ("sys/bus/pci/devices/0000:1b:00.0/drm/renderD128/dev", "226:128\n"),
        (
            "proc/driver/nvidia/gpus/0000:1b:00.0/information",
            "Model: \t\t H100\nDevice Minor: \t 3\n",
        ),
        (
            "proc/devices",
            "Character devices:\n  1 mem\n195 nvidia-frontend\n\nBlock devices:\n259 blkext\n",
        ),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = partial(device_nodes, root=tmp_path / "sys", proc=tmp_path / "proc")
    assert found("0000:1b:00.0") == ((226, 1), (226, 128), (195, 3))
    assert found("0000:2b:00.0") == ()
    (tmp_path / "proc/devices").write_text("")
    assert found("0000:1b:00.0") == ((226, 1), (226, 128))


def test_a_machine_says_which_processors_and_memory_lie_together(tmp_path: Path) -> None:
    trees.dgx_h100(tmp_path)
    found = numas(tmp_path, set(range(0, 112, 8)))
    assert found[1] == Numa((56, 64, 72, 80, 88, 96, 104), trees.MEMORY_KIB << 10)
    assert numas(tmp_path / "nothing") == {}
