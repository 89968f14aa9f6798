"""An agent with a real container engine, and an image made of this machine's static busybox.

The image is made here, so no registry is needed. Used by test_containers.py.
"""

import asyncio
import io
import os
import shutil
import tarfile
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest
from agent_world import World, world_at

from libs.common import facts as f
from libs.common.messages import StartOrder
from services.node_agent.machine import processes
from services.node_agent.runtimes import container, runner
from services.node_agent.runtimes.containers import INIT
from services.node_agent.runtimes.engine import Engine, socket_of

IMAGE = "muster-test:1"
ENGINE = socket_of(os.environ.get("MUSTER_CONTAINER_ENGINE", ""))
APPLETS = (
    "sh",
    "sleep",
    "cat",
    "id",
    "echo",
    "pwd",
    "dd",
    "touch",
    "env",
    "grep",
    "sort",
    "kill",
    "ls",
    "ps",
    "true",
    "tr",
    "head",
    "wc",
    "httpd",
)
GONE_S = 8.0


def _why_not() -> str:
    if not ENGINE:
        return (
            "no container engine is here: set MUSTER_CONTAINER_ENGINE to the socket of Docker or "
            "Podman"
        )
    try:
        runner.ask(ENGINE, "GET", "/version")
    except OSError as error:
        return f"the container engine at {ENGINE} does not answer: {error}"
    return (
        ""
        if INIT.exists() and shutil.which("busybox")
        else "no busybox to make an image of, or no init for this processor"
    )


WHY_NOT = _why_not()


@pytest.fixture(scope="module", autouse=True)
def image() -> Iterator[None]:
    made_image(IMAGE)
    yield
    removed_image(IMAGE)


def files(more_bytes: int = 0) -> bytes:
    """Return the archive of a file system with busybox, and a file of so many random bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
            member = tarfile.TarInfo(folder)
            member.type, member.mode = tarfile.DIRTYPE, mode
            archive.addfile(member)
        archive.add(os.path.realpath(str(shutil.which("busybox"))), "bin/busybox")
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            archive.addfile(link)
        filler = tarfile.TarInfo("filler")
        filler.size = more_bytes
        archive.addfile(filler, io.BytesIO(os.urandom(more_bytes)))
    return packed.getvalue()


def made_image(name: str, changes: Sequence[str] = ()) -> None:
    """Make an image of busybox. `changes` are lines of a Dockerfile."""
    query = [("fromSrc", "-"), ("repo", name), *(("changes", change) for change in changes)]
    engine = runner.Engine(ENGINE)
    engine.request(
        "POST",
        f"/images/create?{urlencode(query)}",
        files(),
        {"Content-Type": "application/x-tar"},
    )
    answer = engine.getresponse()
    assert answer.status == 200, answer.read()
    answer.read()
    engine.close()


def removed_image(name: str) -> None:
    engine = runner.Engine(ENGINE)
    engine.request("DELETE", f"/images/{name}?force=1")
    engine.getresponse().read()
    engine.close()


async def on_engine(tmp_path: Path, users: dict[str, str]) -> AsyncIterator[World]:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        if folder.stat().st_uid == os.geteuid():
            folder.chmod(folder.stat().st_mode | 0o011)
    async with world_at(tmp_path / "state", users=users, engine=ENGINE) as made:
        yield made


def order(
    world: World,
    job: str,
    script: str,
    image: str = IMAGE,
    tenant: str = "default",
    registry: bool = False,
    **wish: Any,
) -> StartOrder:
    made = world.order(job, script)
    wish = {"command": ("sh", "-c", script), "workdir": "", **wish}
    spec = msgspec.structs.replace(made.spec, image=image, **wish)
    return msgspec.structs.replace(made, spec=spec, tenant=tenant, registry=registry)


async def ended(world: World, job: str, script: str, **wish: Any) -> tuple[f.JobFinished, str, str]:
    """How it ended, and what it printed."""
    await world.place(order(world, job, script, **wish))
    finished = await world.said(f.JobFinished, job)
    return finished, *[
        (await world.output(job, stream=stream)).data.decode() for stream in ("stdout", "stderr")
    ]


async def containers(world: World) -> list[str]:
    return [
        name
        for name, where in await Engine(ENGINE).left(container.LABEL)
        if where.startswith(str(world.state_dir))
    ]


def inside(marker: str) -> list[int]:
    """Processes with this word among their arguments, but no runner of ours."""
    found = []
    for pid in processes.all_pids():
        try:
            line = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if line[0] == b"sleep" and marker.encode() in line:
            found.append(pid)
    return found


async def until(holds: Any) -> None:
    async with asyncio.timeout(GONE_S):
        while not holds():
            await asyncio.sleep(0.05)
