"""Prepares jobs with an image, and removes their containers.

The image is pulled before the marker is written. Then the supervisor runs runner.py instead of the
command. An agent that starts removes the containers of unknown attempts. Tests:
tests/integration/test_containers.py.
"""

import asyncio
import logging
import os
import platform
import sys
from collections.abc import Callable, Collection, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Final

import msgspec
from msgspec.structs import replace

from libs.common.devices.means import lost
from libs.common.errors import Refused, Unavailable
from libs.common.messages import StartOrder
from libs.common.model import IMAGES, Gpu, GpuId
from services.node_agent.core.inherited import INHERITED
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import Launch
from services.node_agent.drivers import DeviceNodes
from services.node_agent.machine import cgroups
from services.node_agent.memory.pools import socket_folder
from services.node_agent.runtimes import container as c
from services.node_agent.runtimes.engine import Engine, names, socket_of
from services.node_agent.runtimes.runner import VARIABLE, unmount
from services.node_agent.supervisor import records

HERE: Final = Path(__file__).resolve().parent
RUNNER: Final = HERE / "runner.py"
INIT: Final = HERE / f"init.{platform.machine()}"
CDI: Final = ("/etc/cdi", "/var/run/cdi")
PREFIX: Final = "muster"
# Digits of the hash in a container's name, which differs between agents that share an engine.
NAME_DIGITS: Final = 8
MOUNTS: Final = "mounts"
GONE: Final = "gone"

logger = logging.getLogger(__name__)


class Containers:
    """The containers of one agent.

    `jobs_dir` is part of their labels and names. If it is None, this agent runs no containers (the
    simulation).
    """

    def __init__(self, jobs_dir: Path | None = None, engine: str = "") -> None:
        self.jobs_dir, self.setting = jobs_dir, engine
        self.removing: asyncio.Task[None] | None = None
        self.begun: dict[str, None] = {}
        # Attempts without a container, whose markers need not be read.
        self.without: set[str] = set()

    def adopt(self, keys: Collection[str]) -> None:
        """Remove containers that belong to none of the attempts in `keys`.

        This runs in the background: an engine may hang, and the jobs here need their leases.
        """
        if (engine := self._engine()) is not None:
            self.removing = asyncio.create_task(self._remove_orphans(engine, keys))

    def isolation(self) -> dict[str, str]:
        """Return whether images can run here, for NodeRegistered.

        A job with an image is placed only where they can.
        """
        return {IMAGES: lost(self.lacking)} if self.jobs_dir is not None else {}

    @property
    def lacking(self) -> str:
        """Return why no container can run; empty if one can."""
        if not socket_of(self.setting):
            return "no container engine is on this node (MUSTER_CONTAINER_ENGINE)"
        return "" if INIT.exists() else f"Muster runs no containers on {platform.machine()} yet"

    async def close(self) -> None:
        """Close the connections; containers live on."""
        if self.removing is not None:
            self.removing.cancel()
            await asyncio.gather(self.removing, return_exceptions=True)

    async def _remove_orphans(self, engine: Engine, keys: Collection[str]) -> None:
        """Remove orphaned containers. Jobs that started in the meantime keep theirs."""
        try:
            for name, job_dir in await engine.left(c.LABEL):
                path = Path(job_dir)
                if (
                    path.parent == self.jobs_dir
                    and path.name not in keys
                    and path.name not in self.begun
                ):
                    logger.warning(
                        "container %s of %s is removed: this agent knows no such attempt",
                        name[:12],
                        path.name,
                    )
                    await engine.remove(name)
        except Unavailable as error:
            logger.warning("%s", error)

    async def hold(
        self,
        launch: Launch,
        order: StartOrder,
        inventory: Sequence[Gpu],
        nodes: DeviceNodes,
        wanted: Callable[[], bool],
    ) -> Launch:
        """Return the launch of the runner for a job with an image. Raises NoImage or Refused."""
        if not order.spec.image:
            self.without.add(key_of(launch.ref))
            return launch
        engine = self._engine()
        if engine is None or self.lacking:
            raise Refused(f"image: {self.lacking or 'this agent runs no containers'}")
        if self.removing is not None and not self.removing.done():
            self.begun[key_of(launch.ref)] = None
        held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
        try:
            await engine.pull(order.spec.image, wanted)
            made = self._made(engine, launch, order=order, held=held, nodes=nodes)
        except (Unavailable, OSError) as error:
            raise Refused(f"image: {error}") from error
        argv = (sys.executable, "-I", "-S", str(RUNNER))
        workdir = made.workdir if order.spec.workdir or order.spec.upload else ""
        env = {VARIABLE: msgspec.json.encode(made).decode()}
        return replace(launch, argv=argv, env=env, workdir=workdir, limits={}, container=True)

    def forget(self, key: str) -> None:
        self.without.discard(key)

    async def let_go(self, key: str) -> dict[str, str]:
        """Remove the attempt's container and return the receipt's entry; none without a
        container.
        """
        if not self._has_container(key):
            return {}
        engine = self._engine()
        if engine is None:
            return {"container": "not known: the container engine is gone"}
        await asyncio.to_thread(unmount, self._mount(key))
        label = f"{c.LABEL}={self.jobs_dir}/{key}"
        try:
            for name, _ in await engine.left(label):
                await engine.remove(name)
            there = await engine.left(label)
        except Unavailable as error:
            return {"container": f"not known: {error}"}
        return {"container": f"left: {names(there)}" if there else GONE}

    def _has_container(self, key: str) -> bool:
        """Return whether the attempt's marker notes a container."""
        if self.jobs_dir is None or key in self.without:
            return False
        return bool(records.read_summary(f"{self.jobs_dir}/{key}").get("note", {}).get("container"))

    def _mount(self, key: str) -> str:
        """Return the mount point.

        It lies beside the job directories, so that removing one of those never removes a user's
        files.
        """
        return f"{self.jobs_dir}/../{MOUNTS}/{key}"

    def _engine(self) -> Engine | None:
        path = socket_of(self.setting) if self.jobs_dir is not None else ""
        return Engine(path) if path else None

    def _made(
        self,
        engine: Engine,
        launch: Launch,
        order: StartOrder,
        held: Sequence[Gpu],
        nodes: DeviceNodes,
    ) -> c.Made:
        spec, key = order.spec, key_of(launch.ref)
        job_dir = f"{self.jobs_dir}/{key}"
        env = {
            name: value
            for name, value in launch.env.items()
            if name not in INHERITED or name in spec.env
        }
        ids = launch.account.ids if launch.account is not None else []
        files = {gpu.uuid: device_files(nodes, gpu.uuid) for gpu in held}
        user = f"{os.geteuid()}:{os.getegid()}"
        host = c.Host(
            init=str(INIT),
            files=files,
            cdi=any(map(_names_nvidia, CDI)),
            processes_max=cgroups.processes_max(),
            user=user,
        )
        workdir = launch.workdir if spec.workdir or spec.upload else ""
        body = c.body_of(
            spec,
            argv=launch.argv,
            env=env,
            ids=ids,
            held=held,
            limits=dict(launch.limits),
            host=host,
        )
        body["Labels"] = {c.LABEL: job_dir}
        if workdir:
            body["WorkingDir"] = workdir
        mounts = [
            c.mounted(str(INIT), c.INIT, True),
            c.mounted(f"{job_dir}/tether", c.TETHER, True),
        ]
        if folder := socket_folder(env):
            mounts.append(c.mounted(folder, folder, True))
        if launch.used.daemon:
            folder = env["CUDA_MPS_PIPE_DIRECTORY"].rpartition("/")[0]
            mounts.append(c.mounted(folder, folder))
            body["HostConfig"]["IpcMode"] = "host"
        body["HostConfig"]["Mounts"] = mounts
        name = f"{PREFIX}-{key}-{sha256(job_dir.encode()).hexdigest()[:NAME_DIGITS]}"
        return c.Made(
            engine=engine.path,
            name=name,
            tether=f"{job_dir}/tether",
            mount=self._mount(key),
            workdir=workdir,
            ids=ids,
            stdin=spec.stdin,
            body=body,
        )


def device_files(nodes: DeviceNodes, uuid: GpuId, root: Path = Path("/sys")) -> list[str]:
    """Return the files of a device, as udev names them."""
    found = []
    for major, minor in nodes.get(uuid, ()):
        try:
            lines = (root / f"dev/char/{major}:{minor}/uevent").read_text().splitlines()
        except OSError:
            continue
        found += [
            f"/dev/{line.removeprefix('DEVNAME=')}" for line in lines if line.startswith("DEVNAME=")
        ]
    return found


def _names_nvidia(folder: str) -> bool:
    return os.path.isdir(folder) and any("nvidia" in name for name in os.listdir(folder))
