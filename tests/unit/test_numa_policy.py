"""Host memory near devices and pinned, on the real kernel."""

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.node_agent.memory import numa_policy

MIB = 1 << 20


@pytest.fixture
def memory() -> Iterator[int]:
    descriptor = os.memfd_create("test")
    yield descriptor
    os.close(descriptor)


def locked_bytes() -> int:
    (line,) = [
        line for line in Path("/proc/self/status").read_text().splitlines() if "VmLck" in line
    ]
    return int(line.split()[1]) << 10


def policy() -> str:
    """The policy of this thread, from a mapping that it has now."""
    lines = Path("/proc/thread-self/numa_maps").read_text().splitlines()
    return next(line for line in lines if "heap" in line or "stack" in line).split()[1]


@pytest.mark.parametrize("nodes", [(), (0,), (5_000,), (1_023,)])
def test_pages_are_allocated_wherever_there_is_room(memory: int, nodes: tuple[int, ...]) -> None:
    near = numa_policy.allocate(memory, 2 * MIB, nodes)
    assert os.fstat(memory).st_blocks * 512 == 2 * MIB
    assert near in ((nodes == (0,)), False)


def test_the_policy_of_the_thread_is_as_before(memory: int) -> None:
    if not Path("/proc/thread-self/numa_maps").exists():
        pytest.skip("this kernel shows no memory policies")
    before = policy()
    numa_policy.allocate(memory, MIB, (0,))
    assert policy() == before


def test_an_unknown_memory_node_is_refused_by_the_kernel() -> None:
    with pytest.raises(OSError):
        numa_policy.set_policy(numa_policy.BIND, (1_000,))


def test_another_processor_gets_memory_from_anywhere(
    memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numa_policy.platform, "machine", lambda: "sparc")
    assert not numa_policy.allocate(memory, MIB, (0,))
    assert os.fstat(memory).st_blocks * 512 == MIB


def test_pinned_pages_are_locked_until_they_are_released(memory: int) -> None:
    os.posix_fallocate(memory, 0, MIB)
    before = locked_bytes()
    pinned = numa_policy.pinned(memory, MIB)
    if pinned is None:
        pytest.skip(f"locked memory is limited: {resource.getrlimit(resource.RLIMIT_MEMLOCK)}")
    assert locked_bytes() == before + MIB
    pinned.release()
    assert locked_bytes() == before


def test_memory_beyond_the_limit_is_not_pinned_and_works(memory: int) -> None:
    os.posix_fallocate(memory, 0, MIB)
    child = os.fork()
    if child == 0:
        os.seteuid(65_534) if os.geteuid() == 0 else None
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (4_096, 4_096))
        os._exit(numa_policy.pinned(memory, MIB) is not None)
    assert os.waitpid(child, 0)[1] == 0
