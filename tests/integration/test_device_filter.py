"""Devices that a job was not given: it cannot open them, however it tries. /dev/zero and /dev/full
stand for GPUs: real nodes.
"""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from supervision_world import World, python, world_at

from libs.common.errors import Refused
from services.node_agent.machine import cgroups, device_filter
from services.node_agent.machine.cgroup_files import DEVICES, UNIFIED
from services.node_agent.machine.cgroups import Home
from services.node_agent.supervision.denial import deny
from tests import cgroups as given

MINE, OTHER = os.stat("/dev/zero").st_rdev, os.stat("/dev/full").st_rdev
NOT_GIVEN = {"denied": [[os.major(OTHER), os.minor(OTHER)]]}
OPEN = """
import os
for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
    try: os.open("/dev/full", flags)
    except OSError as error: print(error.errno)
"""
# Prints how many bytes of the other device it gets, then the same for both, once it may go on.
CHANGES = """
head -c1 /dev/full | wc -c; until [ -e go ]; do sleep 0.01; done
head -c1 /dev/full | wc -c; head -c1 /dev/zero | wc -c
"""
# Opens the other device all the time, and prints how often that succeeded.
TRIES = """
import os
count = 0
print("begun", flush=True)
while not os.path.exists("go"):
    try: os.close(os.open("/dev/full", os.O_RDONLY)); count += 1
    except OSError: pass
print(count)
"""
CHANGES_OF_FILTER = 40
# Each way prints what came of it.
WAYS = {
    "itself": "head -c1 /dev/full",
    "a child": "sh -c 'sh -c \"head -c1 /dev/full\"; true'",
    "another session": "setsid -w sh -c 'head -c1 /dev/full'",
    "a new login": "env -i sh -lc 'head -c1 /dev/full'",
    "a nested namespace": (
        "unshare -rm sh -c 'head -c1 /dev/full' || unshare -m sh -c 'head -c1 /dev/full'"
    ),
    "a node of its own": "mknod own c 1 7 && head -c1 own",
    "a daemon": "setsid sh -c 'head -c1 /dev/full' &",
}


@pytest.fixture(params=["filter", "controller"])
def home(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """By a BPF filter, and by the devices controller of v1."""
    if request.param == "controller":
        monkeypatch.setattr(device_filter, "load", refused)
    with given.home() as made:
        given.needs(made, DEVICES)
        if request.param == "filter" and made.dirs[DEVICES] != made.dirs.get(UNIFIED):
            pytest.skip("this kernel takes no device filter (bpf(2)) from this user")
        monkeypatch.undo()
        yield made


def numbers(device: int) -> list[int]:
    return [os.major(device), os.minor(device)]


def refused(denied: object) -> int:
    raise PermissionError(1, os.strerror(1), "bpf")


@pytest.fixture
async def world(tmp_path: Path, home: Home) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent", home.dirs) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
async def test_a_device_that_was_not_given_cannot_be_opened_by(world: World, way: str) -> None:
    await world.run("job", f"head -c1 /dev/zero | wc -c; ( {WAYS[way]} ) | wc -c", limits=NOT_GIVEN)
    errors = world.output(("job", 1), "stderr")
    assert world.output(("job", 1)).split() == [b"1", b"0"]
    assert b"Operation not permitted" in errors


async def test_the_next_job_of_the_same_group_is_given_what_it_is_given(world: World) -> None:
    for name, limits, expected in (("a", NOT_GIVEN, 0), ("b", {}, 1), ("c", NOT_GIVEN, 0)):
        await world.run(name, "head -c1 /dev/full | wc -c", limits=limits)
        assert world.output((name, 1)).split() == [str(expected).encode()]


async def test_reading_and_writing_are_denied_alike(world: World) -> None:
    key = await world.launch("job", *python(OPEN), limits=NOT_GIVEN)
    await world.told(key, "exited")
    assert world.output(key).split() == [b"1"] * 3


async def test_a_running_job_cannot_open_a_device_that_is_denied_later(world: World) -> None:
    key = await world.shell("job", CHANGES)
    await world.printed(key, b"1\n")
    await deny(world.supervisors.job_dir(key), [numbers(OTHER)])
    (world.state_dir / "go").touch()
    await world.told(key, "exited")
    assert world.output(key).split() == [b"1", b"0", b"1"]
    await deny(world.supervisors.job_dir(key), [])  # the attempt has ended: harmless


async def test_a_running_job_can_open_a_device_that_is_not_denied_any_more(world: World) -> None:
    key = await world.shell("job", CHANGES, limits=NOT_GIVEN)
    await world.printed(key, b"0\n")
    await deny(world.supervisors.job_dir(key), [numbers(MINE)])
    (world.state_dir / "go").touch()
    await world.told(key, "exited")
    assert world.output(key).split() == [b"0", b"1", b"0"]


async def test_a_device_that_stays_denied_can_never_be_opened_in_between(world: World) -> None:
    key = await world.launch("job", *python(TRIES), limits=NOT_GIVEN)
    await world.printed(key, b"begun")
    for turn in range(CHANGES_OF_FILTER):
        more = [numbers(MINE)] if turn % 2 else []
        await deny(world.supervisors.job_dir(key), [numbers(OTHER), *more])
    (world.state_dir / "go").touch()
    await world.told(key, "exited")
    assert world.output(key).split() == [b"begun", b"0"]


async def test_a_request_to_deny_something_else_than_devices_is_refused(world: World) -> None:
    key = await world.shell("job", "sleep 60")
    await world.told(key, "started")
    for wrong in ([[1]], [["1", 7]], [7]):
        with pytest.raises(Refused, match=r"denied needs devices as \[major, minor\]"):
            await deny(world.supervisors.job_dir(key), wrong)  # type: ignore[arg-type]


def test_without_a_filter_and_a_controller_it_is_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_filter, "load", refused)
    (tmp_path / "cgroup.controllers").write_text("")
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"2 2 0:3 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    assert cgroups.prepare("x", "y", str(mounts)).lost[DEVICES] == "bpf: Operation not permitted"


def test_the_program_denies_what_is_named_and_allows_all_else() -> None:
    """Without a kernel: by the few instructions that there are."""
    code = device_filter.assemble([(195, 1), (226, 129)])
    for device, allowed in (
        ((2, 195, 1), 0),
        ((2, 226, 129), 0),
        ((2, 195, 0), 1),
        ((2, 226, 1), 1),
        ((1, 195, 1), 1),
    ):
        assert run(code, device) == allowed


def run(code: bytes, device: tuple[int, int, int]) -> int:
    """`device`: its kind (1 block, 2 character), major and minor; the access stands
    above the kind.
    """
    words = (device[0] | 6 << 16, *device[1:])
    steps = [
        device_filter.INSTRUCTION.unpack_from(code, at)
        for at in range(0, len(code), device_filter.INSTRUCTION.size)
    ]
    registers, at = dict.fromkeys(range(5), 0), 0
    while True:
        operation, names, offset, value = steps[at]
        at, target = at + 1, names & 0xF
        match operation:
            case device_filter.LOAD_WORD:
                registers[target] = words[offset // 4]
            case device_filter.AND:
                registers[target] &= value
            case device_filter.UNLESS_EQUAL:
                at += offset if registers[target] != value else 0
            case device_filter.SET:
                registers[target] = value
            case device_filter.EXIT:
                return registers[0]
