"""Prepares jobs with an image, and removes their containers.

The image is pulled (`images.py`) before the marker is written. Then the supervisor runs runner.py
instead of the command. An agent that starts removes the containers of unknown attempts. Tests:
tests/integration/test_containers.py.
"""

import asyncio
import logging
import os
import platform
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from glob import escape, glob
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import msgspec
from msgspec.structs import replace

from libs.common.container_spec import ContainerSpec
from libs.common.devices.means import CONTAINERS, lost
from libs.common.errors import Refused, Unavailable
from libs.common.messages import StartOrder
from libs.common.model import IMAGES, Gpu, GpuId, JobSpec
from services.node_agent.core.inherited import INHERITED
from services.node_agent.core.state import key_of
from services.node_agent.directories.protocol import CHECKPOINT, CHECKPOINT_VARIABLE, Launch
from services.node_agent.drivers import DeviceNodes
from services.node_agent.machine import cgroups
from services.node_agent.memory.pools import socket_folder
from services.node_agent.runtimes import cdi
from services.node_agent.runtimes import container as c
from services.node_agent.runtimes.allowed import (
    NOTHING,
    Allowed,
    Range,
    mount_of,
    working_directory,
)
from services.node_agent.runtimes.engine import Abilities, Engine, names, socket_of
from services.node_agent.runtimes.faults import NoContainer
from services.node_agent.runtimes.images import Credentials, Images, Wanted
from services.node_agent.runtimes.own_folders import SAVED_AT, Lent, OwnFolders
from services.node_agent.runtimes.runner import DOOR, MOUNTS, VARIABLE, unmount
from services.node_agent.supervisor import records
from services.node_agent.tracing.tracing import trace_folder

HERE: Final = Path(__file__).resolve().parent
RUNNER: Final = HERE / "runner.py"
INIT: Final = HERE / f"init.{platform.machine()}"
PREFIX: Final = "muster"
# Digits of the hash in a container's name, which differs between agents that share an engine.
NAME_DIGITS: Final = 8
GONE: Final = "gone"
# If the engine does not answer, the agent looks for orphaned containers again after this time.
ORPHANS_AGAIN_S: Final = 30.0
# The kernel's bound of one variable, MAX_ARG_STRLEN.
VARIABLE_BYTES_MAX: Final = 128 << 10

logger = logging.getLogger(__name__)


class Containers:
    """The containers of one agent.

    `jobs_dir` is part of their labels and names. If it is None, this agent runs no containers (the
    simulation). `image_bytes` and `cache_bytes` bound images and caches; 0: no bound. `taken`
    returns the ids that jobs run under; it blocks.
    """

    def __init__(
        self,
        jobs_dir: Path | None = None,
        engine: str = "",
        allowed: Allowed = NOTHING,
        image_bytes: int = 0,
        cache_bytes: int = 0,
        taken: Callable[[], Sequence[Range]] = tuple,
    ) -> None:
        self.jobs_dir, self.setting, self.allowed = jobs_dir, engine, allowed
        self.taken = taken
        state_dir = (jobs_dir or Path()).parent
        self.images = Images(state_dir, image_bytes)
        self.folders = OwnFolders(state_dir, cache_bytes)
        # Caches of attempts whose containers may not exist yet, by attempt.
        self.caches: dict[str, list[str]] = {}
        self.lending: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self.removing: asyncio.Task[None] | None = None
        self.begun: dict[str, None] = {}
        # Attempts without a container, whose markers need not be read.
        self.without: set[str] = set()

    def adopt(self, keys: Collection[str]) -> None:
        """Remove containers that belong to none of the attempts in `keys`.

        This runs in the background until the engine has answered: it may hang or start later, and
        the jobs here need their leases.
        """
        if self.jobs_dir is not None:
            scratch = self.folders.orphans(keys)
            self.removing = asyncio.create_task(self._remove_orphans(keys, scratch))

    def isolation(self) -> dict[str, str]:
        """Return whether images can run here, for NodeRegistered.

        A job with an image is placed only where they can.
        """
        if self.jobs_dir is None:
            return {}
        return {IMAGES: lost(self.lacking), CONTAINERS: lost(self.lacking)}

    @property
    def lacking(self) -> str:
        """Return why no container can run; empty if one can."""
        if not socket_of(self.setting):
            return "no container engine is on this node (MUSTER_CONTAINER_ENGINE)"
        return "" if INIT.exists() else f"Muster runs no containers on {platform.machine()} yet"

    async def close(self) -> None:
        """End the work in the background; containers live on."""
        await self.images.close()
        if self.removing is not None:
            self.removing.cancel()
            await asyncio.gather(self.removing, return_exceptions=True)

    async def _remove_orphans(self, keys: Collection[str], scratch: Sequence[str]) -> None:
        """Remove orphaned containers, and the scratch directories of these attempts.

        Jobs that started in the meantime keep theirs.
        """
        for key in scratch:
            await asyncio.to_thread(self.folders.let_go, key)
        is_told = False
        while True:
            try:
                if (engine := self._engine()) is not None:
                    await self._remove_unknown(engine, keys)
                    return
            except Unavailable as error:
                if not is_told:
                    logger.warning("orphaned containers stay for now: %s", error)
                is_told = True
            await asyncio.sleep(ORPHANS_AGAIN_S)

    async def _remove_unknown(self, engine: Engine, keys: Collection[str]) -> None:
        """Remove the containers of attempts that this agent does not know. Raises Unavailable."""
        for name, job_dir in await engine.left(c.LABEL):
            path = Path(job_dir)
            is_known = path.name in keys or path.name in self.begun
            if path.parent == self.jobs_dir and not is_known:
                logger.warning(
                    "container %s of %s is removed: this agent knows no such attempt",
                    name[:12],
                    path.name,
                )
                await engine.remove(name)

    async def hold(
        self,
        launch: Launch,
        order: StartOrder,
        inventory: Sequence[Gpu],
        nodes: Callable[[], DeviceNodes],
        wanted: Callable[[], bool],
        credentials: Credentials,
    ) -> Launch:
        """Return the launch of the runner for a job with an image.

        `credentials` asks for the tenant's credentials for the image's registry. Raises NoContainer
        or Refused.
        """
        if not order.spec.image:
            self.without.add(key_of(launch.ref))
            return launch
        engine = self._engine()
        if engine is None or self.lacking:
            raise Refused(f"image: {self.lacking or 'this agent runs no containers'}")
        key = key_of(launch.ref)
        if self.removing is not None and not self.removing.done():
            self.begun[key] = None
        held = [gpu for hold in order.gpus for gpu in inventory if gpu.uuid == hold.uuid]
        try:
            places = [*self._places(order.spec), *map(dict, launch.mounts)]
            image = await self.images.ready(
                engine, Wanted(order.spec.image, key, order.tenant, credentials, wanted, order.pin)
            )
            lent = await self._lend(engine, key, order, launch.env)
            can = await engine.abilities()
            host = await asyncio.to_thread(self._host, held, nodes(), can)
            made = self._made(
                engine, launch, order=order, held=held, host=host, image=image, lent=lent
            )
        except (Unavailable, OSError) as error:
            raise Refused(f"image: {error}") from error
        made = replace(made, mounts=[*made.mounts, *places])
        argv = (sys.executable, "-I", "-S", str(RUNNER))
        return replace(
            launch,
            argv=argv,
            env={VARIABLE: _text_of(made)},
            workdir=launch.workdir if order.spec.workdir or order.spec.upload else "",
            limits={},
            container=True,
            image=image.digest,
            in_registry=not image.is_local,
        )

    def _places(self, spec: JobSpec) -> list[dict[str, Any]]:
        """Return the job's mounts for runner.py. Raises NoContainer for one that is not allowed."""
        mounts = spec.container.mounts if spec.container is not None else ()
        return [mount_of(mount, self.allowed.roots) for mount in mounts]

    async def _lend(
        self, engine: Engine, key: str, order: StartOrder, env: Mapping[str, str]
    ) -> Lent:
        """Return the agent's own folders for a container."""
        wish = order.spec.container or ContainerSpec()
        self.caches[key] = self.folders.caches(order.tenant, wish)
        lock = self.lending.get(order.tenant) or asyncio.Lock()
        self.lending[order.tenant] = lock  # kept as long as a start uses it
        async with lock:
            listed = await engine.left(c.CACHES_LABEL) if wish.caches else []
            used = [path for other, paths in self.caches.items() if other != key for path in paths]
            used += [path for _, paths in listed for path in paths.split("\n")]
            return await asyncio.to_thread(
                self.folders.lend, key, order.tenant, wish=wish, env=env, used=used
            )

    def forget(self, key: str) -> None:
        self.without.discard(key)

    async def let_go(self, key: str) -> dict[str, str]:
        """Remove the attempt's container; return the receipt's entry, none without a container."""
        if key in self.without:
            return {}
        self.images.let_go(key)
        self.caches.pop(key, None)
        if not self._has_container(key):
            await asyncio.to_thread(self._clear, key)
            return {}
        engine = self._engine()
        if engine is None:
            return {"container": "not known: the container engine is gone"}
        label = f"{c.LABEL}={self.jobs_dir}/{key}"
        try:
            for name, _ in await engine.left(label):
                await engine.remove(name)
            there = await engine.left(label)
        except Unavailable as error:
            return {"container": f"not known: {error}"}
        await asyncio.to_thread(self._clear, key)
        return {"container": f"left: {names(there)}" if there else GONE}

    def _clear(self, key: str) -> None:
        """Unmount what runner.py left mounted, and remove the attempt's scratch directories."""
        if self.jobs_dir is None:
            return
        mount = self._mount(key)
        for at in (mount, *glob(f"{escape(mount)}.*")):
            unmount(at)
        self.folders.let_go(key)

    def _has_container(self, key: str) -> bool:
        """Return whether the attempt's marker notes a container."""
        if self.jobs_dir is None:
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
        host: c.Host,
        image: c.Image,
        lent: Lent,
    ) -> c.Made:
        """Return the input of the runner. Raises NoContainer."""
        spec, key = order.spec, key_of(launch.ref)
        job_dir = f"{self.jobs_dir}/{key}"
        saved = {CHECKPOINT_VARIABLE: f"{SAVED_AT}/{CHECKPOINT}"}
        env = _environment(launch, spec) | lent.env | saved
        ids = launch.account.ids if launch.account is not None else []
        workdir = launch.workdir if spec.workdir or spec.upload else ""
        body = c.body_of(
            spec,
            argv=launch.argv,
            env=env,
            ids=ids,
            held=held,
            limits=dict(launch.limits),
            host=host,
            image=image,
        )
        # An uploaded directory belongs to the job, also if the container has another user.
        is_own = bool(spec.upload) or c.is_own_user(body["User"], ids, host)
        workdirs = [working_directory(workdir, is_own, self.allowed.roots)] if workdir else []
        body["Labels"] = {c.LABEL: job_dir, c.IMAGE_LABEL: spec.image}
        if lent.caches:
            body["Labels"][c.CACHES_LABEL] = "\n".join(lent.caches)
        inside = spec.container.workdir if spec.container is not None else ""
        if inside or workdir:
            body["WorkingDir"] = inside or workdir
        if launch.used.daemon:
            body["HostConfig"]["IpcMode"] = "host"
        door = c.mounted(f"{self._mount(key)}{DOOR}", c.DOOR, True)
        body["HostConfig"]["Mounts"] = [*_mounts(job_dir, env, launch), door, *lent.mounts]
        name = f"{PREFIX}-{key}-{sha256(job_dir.encode()).hexdigest()[:NAME_DIGITS]}"
        return c.Made(
            engine=engine.path,
            name=name,
            tether=f"{job_dir}/tether",
            mount=self._mount(key),
            ids=ids,
            stdin=spec.stdin,
            body=body,
            mounts=workdirs,
        )

    def _host(self, held: Sequence[Gpu], nodes: DeviceNodes, can: Abilities) -> c.Host:
        return c.Host(
            init=str(INIT),
            files={gpu.uuid: device_files(nodes, gpu.uuid) for gpu in held},
            cdi=cdi.names(can.cdi_folders) if held else {},
            processes_max=cgroups.processes_max(),
            user=c.ROOT if can.rootless else f"{os.geteuid()}:{os.getegid()}",
            users=self.allowed.users,
            taken=self.taken() if self.allowed.users else (),
        )


def _text_of(made: c.Made) -> str:
    """Return the input of the runner for its variable. Raises NoContainer if it is too long."""
    text = msgspec.json.encode(made).decode()
    size = len(VARIABLE) + len(text.encode()) + len("=\0")
    if size > VARIABLE_BYTES_MAX:
        raise NoContainer(
            f"the container's description has {size} bytes, and at most {VARIABLE_BYTES_MAX} can "
            "be given: most of it are the job's environment, secrets and arguments. Put large "
            "values into a file"
        )
    return text


def _environment(launch: Launch, spec: JobSpec) -> dict[str, str]:
    """Return the job's environment without what it would inherit from the machine."""
    return {
        name: value
        for name, value in launch.env.items()
        if name not in INHERITED or name in spec.env
    }


def _mounts(job_dir: str, env: Mapping[str, str], launch: Launch) -> list[dict[str, Any]]:
    """Return Muster's own mounts: the first process, its pipe, and the sockets of the job."""
    mounts = [
        c.mounted(str(INIT), c.INIT, True),
        c.mounted(f"{job_dir}/tether", c.TETHER, True),
    ]
    if folder := socket_folder(env):
        mounts.append(c.mounted(folder, folder, True))
    if folder := trace_folder(env):
        mounts.append(c.mounted(folder, folder))
    if launch.used.daemon:
        folder = env["CUDA_MPS_PIPE_DIRECTORY"].rpartition("/")[0]
        mounts.append(c.mounted(folder, folder))
    return mounts


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
