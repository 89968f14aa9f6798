"""An agent whose MPS daemons are a stand-in program, over a fake NVIDIA library built from C.

Used by test_mps.py.
"""

import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
from agent_world import OWN_USER, World, world_at
from supervision_world import kill
from test_agent_process import Cluster, cluster  # noqa: F401

from libs.common import facts as f
from libs.common.messages import StartOrder
from libs.common.model import MPS, GpuHold, GpuId, TenantId
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.machine import processes
from services.node_agent.sharing.daemons import Program
from tests import cgroups
from tests.drivers.conftest import fakes, libraries  # noqa: F401

HERE = Path(__file__).parent
DEVICE, OTHER = GpuId("GPU-fake-0"), GpuId("GPU-fake-1")
# One that other users may run too.
PYTHON = "/usr/bin/python3" if os.access("/usr/bin/python3", os.X_OK) else sys.executable
WAITS = "until [ -e {go} ]; do sleep 0.02; done"


class Mps:
    """The stand-in as a program of its own, and what it left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.program = folder / "nvidia-cuda-mps-control"
        self.program.write_text(f"#!{PYTHON} -IS\n{(HERE / 'mps_control.py').read_text()}")
        self.program.chmod(0o755)

    def faults(self, *words: str) -> None:
        (self.folder / "faults").write_text(" ".join(words))

    def alive(self) -> list[processes.Process]:
        """The daemons and the servers of this test: they are told where its own folders are."""
        found = [processes.process(pid) for pid in processes.all_pids() if self._is_told(pid)]
        return [
            each
            for each in found
            if each is not None
            and each.name.startswith("nvidia-cuda-mps")
            and each.state not in "ZX"
        ]

    def _is_told(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return (
                os.fsencode(f"CUDA_MPS_PIPE_DIRECTORY={self.folder.parent}/")
                in Path(f"/proc/{pid}/environ").read_bytes()
            )
        return False

    def end(self) -> None:
        for each in self.alive():
            kill(each.pid)


@contextlib.asynccontextmanager
async def under(state: Path, mps: Mps, users: dict[str, str] = OWN_USER) -> AsyncIterator[World]:
    with cgroups.below() as parent:
        home = cgroups.cgroups.prepare(parent, "agent").dirs
        async with world_at(
            state, home, users, LocalDriver(), Program(str(mps.program), 5.0, 1.0)
        ) as made:
            try:
                yield made
            finally:
                mps.end()


def order(
    world: World,
    job: str,
    script: str = "true",
    gpus: tuple[GpuId, ...] = (DEVICE,),
    share: int = 50,
    **rest: str,
) -> StartOrder:
    made = world.order(job, script.format(go=world.state_dir / f"go-{job}"))
    holds = tuple(GpuHold(uuid, share, MPS) for uuid in gpus)
    spec = msgspec.structs.replace(made.spec, isolation=MPS, gpu_share=share, workdir="/")
    return msgspec.structs.replace(made, gpus=holds, spec=spec, **{"tenant": TenantId("t"), **rest})


async def begun(world: World, job: str, script: str = WAITS, **wish: object) -> f.JobStarted:
    await world.place(order(world, job, script, **wish))  # type: ignore[arg-type]
    return await world.said(f.JobStarted, job)


def go(world: World, job: str) -> None:
    (world.state_dir / f"go-{job}").touch()


async def printed(world: World, job: str) -> str:
    await world.said(f.JobFinished, job)
    return (await world.output(job)).data.decode()
