"""Device nodes that change while jobs run: the device filters of the jobs follow them, before
another job gets a device. A real agent with real jobs and filters; /dev/zero and /dev/full stand
for the nodes of GPUs.
"""

import asyncio
import errno
import os
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import pytest
from agent_world import World, world_at
from msgspec.structs import replace
from test_mig_jobs import start, tell

from libs.common import facts as f
from libs.common.errors import Refused
from libs.common.model import AttemptRef, GpuHold, GpuId, JobId
from services.node_agent.devices import device_filters
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.protocol import Launch
from services.node_agent.drivers import DeviceNodes
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.vendor_devices import VendorDevices
from services.node_agent.drivers.vendor_process import VendorProcess
from services.node_agent.machine.cgroup_files import DEVICES
from services.node_agent.machine.cgroups import Home
from services.node_agent.supervision import control_client, denial
from services.node_agent.supervisor import records
from tests import cgroups as given
from tests.drivers.conftest import fakes, libraries  # noqa: F401
from tests.drivers.fakes import Fakes
from tests.drivers.test_amd import FIRST as AMD_FIRST
from tests.drivers.test_amd import SECOND as AMD_SECOND

FIRST, SECOND = GpuId("GPU-n-0"), GpuId("GPU-n-1")
ZERO, FULL = os.stat("/dev/zero").st_rdev, os.stat("/dev/full").st_rdev
# Prints how many bytes of each device it gets, now and once it may go on.
SHOW = "head -c1 /dev/zero | wc -c; head -c1 /dev/full | wc -c"
SHOW_TWICE = f"{SHOW}; until [ -e go ]; do sleep 0.01; done; {SHOW}"
UNTIL_FULL = "until head -c1 /dev/full > /dev/null 2>&1; do sleep 0.01; done"
WAIT = "until [ -e go ]; do sleep 0.01; done"


def nodes(numbers: Mapping[GpuId, int]) -> DeviceNodes:
    return {uuid: ((os.major(each), os.minor(each)),) for uuid, each in numbers.items()}


@pytest.fixture
def home() -> Iterator[Home]:
    with given.home() as made:
        given.needs(made, DEVICES)
        yield made


@pytest.fixture
async def world(tmp_path: Path, home: Home) -> AsyncIterator[World]:
    async with world_at(tmp_path / "state", home.dirs) as made:
        made.driver.nodes = nodes({FIRST: ZERO})
        yield made


async def begins(world: World, job: str, script: str, uuid: GpuId) -> None:
    await world.place(replace(world.order(job, script), gpus=(GpuHold(uuid),)))
    await world.said(f.JobStarted, job)


async def printed(world: World, job: str) -> list[bytes]:
    """Let the job look at its devices again, wait for its end, and return what it printed."""
    (world.state_dir / "go").touch()
    await world.said(f.JobFinished, job)
    return (await world.output(job)).data.split()


def ref(job: str) -> AttemptRef:
    return AttemptRef(JobId(job), 1)


async def has_looked(world: World, job: str) -> None:
    await world.until(lambda: world.agent.jobs.output_bytes(ref(job)) >= len(b"1\n1\n"))


async def test_a_job_cannot_open_a_gpu_that_appeared_after_its_start_once_another_job_has_it(
    world: World,
) -> None:
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "k", WAIT, SECOND)
    assert await printed(world, "j") == [b"1", b"1", b"1", b"0"]


async def test_a_job_of_an_earlier_agent_cannot_open_a_gpu_that_appeared_since(
    world: World,
) -> None:
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    await world.drop()
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await world.begin()
    await begins(world, "k", WAIT, SECOND)
    assert await printed(world, "j") == [b"1", b"1", b"1", b"0"]


async def test_the_next_agent_sets_the_filter_also_if_the_nodes_are_those_of_the_start_again(
    world: World,
) -> None:
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    world.driver.nodes = nodes({FIRST: FULL, SECOND: ZERO})
    assert await world.agent.devices.filters.follow() == {}
    await world.drop()
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await world.begin()
    assert await world.agent.devices.filters.follow() == {}
    assert await printed(world, "j") == [b"1", b"0", b"1", b"0"]


async def test_the_next_agent_allows_no_gpu_whose_nodes_it_cannot_read_yet(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    await world.drop()
    world.driver.nodes = {**nodes({FIRST: ZERO}), SECOND: ()}
    await world.begin()
    for _ in range(2):
        assert await world.agent.devices.filters.follow() == {}
    assert caplog.text.count(f"the device nodes of {SECOND} cannot be read") == 1
    assert await printed(world, "j") == [b"1", b"0", b"1", b"0"]


async def test_a_gpu_on_the_bus_that_never_has_nodes_holds_back_no_filter_of_an_earlier_agent(
    world: World,
) -> None:
    """As one that belongs to a virtual machine: its address names it."""
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    await world.drop()
    world.driver.nodes = {**nodes({FIRST: FULL, SECOND: ZERO}), GpuId("0000:03:00.0"): ()}
    await world.begin()
    assert await world.agent.devices.filters.follow() == {}
    assert await printed(world, "j") == [b"1", b"0", b"0", b"1"]


async def test_a_start_without_gpus_waits_for_no_supervisor_and_the_nodes_are_not_read(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hangs() -> None:
        await asyncio.Event().wait()

    await begins(world, "j", WAIT, FIRST)
    identity = records.read_identity(world.agent.jobs.directory_of(ref("j")))
    assert identity is not None
    monkeypatch.setattr(world.driver, "read_nodes", hangs)
    monkeypatch.setattr(denial, "ANSWER_S", 60.0)
    os.kill(identity["pid"], signal.SIGSTOP)
    try:
        world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
        await world.place(replace(world.order("k", SHOW), gpus=()))
        await world.said(f.JobFinished, "k")
    finally:
        os.kill(identity["pid"], signal.SIGCONT)
    assert (await world.output("k")).data.split() == [b"0", b"0"]


async def test_an_attempt_that_is_being_launched_is_followed_too(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = JobDirectories.launch

    async def late(self: JobDirectories, wanted: Launch) -> None:
        world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
        await launch(self, wanted)
        assert await world.agent.devices.filters.follow() == {}

    monkeypatch.setattr(JobDirectories, "launch", late)
    await begins(world, "j", f"{WAIT}; {SHOW}", FIRST)
    assert await printed(world, "j") == [b"1", b"0"]


def no_descriptor(*arguments: object) -> None:
    raise OSError(errno.EMFILE, "Too many open files")


@pytest.mark.parametrize("failing", [(control_client, "_exchange"), (records, "read_exit")])
async def test_supervisors_that_cannot_be_asked_are_named_and_end_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch, failing: tuple[object, str]
) -> None:
    await begins(world, "j", WAIT, FIRST)
    monkeypatch.setattr(*failing, no_descriptor)
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    found = await world.agent.devices.filters.follow()
    assert found == {"j.1": "its supervisor cannot be asked: [Errno 24] Too many open files"}
    monkeypatch.undo()
    assert list(await world.agent.devices.filters.follow()) == ["j.1"]  # not yet asked again
    assert await printed(world, "j") == []


async def test_an_attempt_of_an_earlier_agent_whose_marker_cannot_be_read_is_named_until_it_can(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", WAIT, FIRST)
    await world.drop()
    await world.begin()
    monkeypatch.setattr(device_filters, "instances_from", no_descriptor)
    found = await world.agent.devices.filters.follow()
    assert found == {"j.1": "its marker cannot be read: [Errno 24] Too many open files"}
    monkeypatch.undo()
    assert await world.agent.devices.filters.follow() == {}
    assert await printed(world, "j") == []


async def test_a_job_keeps_its_own_gpu_when_two_gpus_change_their_numbers(world: World) -> None:
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    world.driver.nodes = nodes({FIRST: FULL, SECOND: ZERO})
    await begins(world, "k", WAIT, SECOND)
    assert await printed(world, "j") == [b"1", b"0", b"0", b"1"]


async def test_filters_follow_the_nodes_also_without_another_start(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_filters, "FOLLOW_S", 0.02)
    monkeypatch.setattr(type(world.driver), "simulated", False)
    await world.drop()
    await world.begin()
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", f"{UNTIL_FULL}; {SHOW}", FIRST)
    world.driver.nodes = nodes({FIRST: FULL, SECOND: ZERO})
    assert await printed(world, "j") == [b"0", b"1"]


async def test_nodes_that_cannot_be_read_end_no_agent_and_are_read_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    failures = iter(
        [OSError(errno.EMFILE, "Too many open files"), RuntimeError("can't start new thread")]
    )

    async def read_nodes() -> None:
        for error in failures:
            raise error
        world.driver.nodes = nodes({FIRST: FULL, SECOND: ZERO})

    monkeypatch.setattr(device_filters, "FOLLOW_S", 0.02)
    monkeypatch.setattr(type(world.driver), "simulated", False)
    await world.drop()
    await world.begin()
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "j", f"{UNTIL_FULL}; {SHOW}", FIRST)
    monkeypatch.setattr(world.driver, "read_nodes", read_nodes)
    assert await printed(world, "j") == [b"0", b"1"]
    assert caplog.text.count("the device nodes of this node cannot be read") == 2


async def test_a_start_is_refused_while_a_running_job_could_open_its_gpu(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(denial, "ANSWER_S", 0.2)
    monkeypatch.setattr(device_filters, "FOLLOW_S", 0.0)
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    identity = records.read_identity(world.agent.jobs.directory_of(ref("j")))
    assert identity is not None
    os.kill(identity["pid"], signal.SIGSTOP)
    try:
        world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
        await world.place(replace(world.order("k", WAIT), gpus=(GpuHold(SECOND),)))
        refused = await world.said(f.JobRefused, "k")
    finally:
        os.kill(identity["pid"], signal.SIGCONT)
    assert refused.reason == (
        "k.1 cannot be started with a GPU of this node: j.1 may open it, because its device filter "
        "could not be changed (its supervisor does not answer). End j.1, or use another node"
    )
    await begins(world, "l", WAIT, SECOND)
    assert await printed(world, "j") == [b"1", b"1", b"1", b"0"]


async def test_a_job_whose_supervisor_is_older_than_the_request_keeps_its_filter(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def older(self: JobDirectories, attempt: AttemptRef, denied: object) -> None:
        raise Refused("the supervisor of j.1 refused deny: no op 'deny'")

    monkeypatch.setattr(JobDirectories, "deny", older)
    await begins(world, "j", SHOW_TWICE, FIRST)
    await has_looked(world, "j")
    world.driver.nodes = nodes({FIRST: ZERO, SECOND: FULL})
    await begins(world, "k", WAIT, SECOND)
    assert await printed(world, "j") == [b"1", b"1", b"1", b"1"]
    assert caplog.text.count("the device filter of j.1 stays as it was") == 1


async def test_a_job_cannot_open_a_part_into_which_another_card_of_amd_is_divided(
    tmp_path: Path,
    home: Home,
    fakes: Fakes,  # noqa: F811
) -> None:
    """The kernel makes the nodes of the parts while the job on the other card runs."""
    fakes.tell("amd", "count * 2")
    sys_root = tmp_path / "sys"
    for address, device in (("0000:c2:00.0", ZERO), ("0000:c1:00.1", FULL)):
        folder = sys_root / "bus/pci/devices" / address / "drm" / "renderD"
        folder.mkdir(parents=True)
        (folder / "dev").write_text(f"{os.major(device)}:{os.minor(device)}\n")
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("amd", 10.0, 20.0))],
        sys_root=sys_root,
        proc_root=tmp_path / "proc",
    )
    async with world_at(tmp_path / "state", home.dirs, real=driver) as world:
        await start(world=world, job="j", script=SHOW_TWICE, slices=0, uuid=AMD_SECOND)
        await has_looked(world, "j")
        assert (await tell(world, "compute-partition", "CPX", AMD_FIRST)).outcome == "done"
        part = GpuId(f"{AMD_FIRST}.1")
        await start(world=world, job="k", script=f"{SHOW}; {WAIT}", slices=0, uuid=part)
        await world.said(f.JobStarted, "k")
        assert await printed(world, "j") == [b"1", b"1", b"1", b"0"]
        assert await printed(world, "k") == [b"0", b"1"]
    await driver.close()


async def test_parts_without_nodes_hold_back_no_filter_of_an_earlier_agent(
    tmp_path: Path,
    home: Home,
    fakes: Fakes,  # noqa: F811
) -> None:
    """The addresses of AMD's parts are not on the PCI bus."""
    fakes.tell("amd", "count * 2")
    sys_root = tmp_path / "sys"

    def show(numbers: Mapping[str, int]) -> None:
        for address, device in numbers.items():
            folder = sys_root / "bus/pci/devices" / address / "drm" / "renderD"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "dev").write_text(f"{os.major(device)}:{os.minor(device)}\n")

    show({"0000:c1:00.0": FULL, "0000:c2:00.0": ZERO})
    driver = LocalDriver(
        vendors=[VendorDevices(VendorProcess("amd", 10.0, 20.0))],
        sys_root=sys_root,
        proc_root=tmp_path / "proc",
    )
    async with world_at(tmp_path / "state", home.dirs, real=driver) as world:
        assert (await tell(world, "compute-partition", "CPX", AMD_FIRST)).outcome == "done"
        await start(world=world, job="j", script=SHOW_TWICE, slices=0, uuid=AMD_SECOND)
        await has_looked(world, "j")
        await world.drop()
        show({"0000:c1:00.0": ZERO, "0000:c2:00.0": FULL})
        await world.begin()
        assert driver.nodes[GpuId(f"{AMD_FIRST}.1")] == ()
        assert await world.agent.devices.filters.follow() == {}
        assert await printed(world, "j") == [b"1", b"0", b"0", b"1"]
    await driver.close()


async def test_a_node_without_device_nodes_remembers_no_filters(world: World) -> None:
    world.driver.nodes = {}
    await begins(world, "j", "true", FIRST)
    await world.said(f.JobFinished, "j")
    assert not world.agent.devices.filters._set
