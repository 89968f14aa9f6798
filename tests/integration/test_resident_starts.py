"""Starts of replicas with kept compile products: one that is stopped, or cannot write its copy, and
many whose engines cannot be read.
"""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder, StartOrder
from libs.common.model import AttemptRef, JobId, JobSpec, Serve
from libs.common.process.cancellation import LOOK_S
from libs.common.safety.folder_walk import remove_tree
from libs.common.state.kept import kept_key
from services.node_agent.core.actions import KeepData
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepDone, KeepSeen, Observation
from services.node_agent.directories.job_ownership import CACHE
from services.node_agent.directories.protocol import Launch, Machine
from services.node_agent.resident import resident
from services.node_agent.resident.artefacts import ArtefactStore
from services.node_agent.resident.compile_folders import ARTEFACTS
from services.node_agent.resident.engine import key_of_start
from services.node_agent.resident.resident import Resident

WAIT_S = 10.0
STARTS = 64
KERNEL = b"k" * 1_000
SPEC = JobSpec(command=("engine",), serve=Serve("chat", 1))
ORDER = StartOrder(JobId("chat-1"), 1, 1, 1, 0, (), SPEC, "default", "u", (), 20_000)
LAUNCH = Launch(
    ref=AttemptRef(JobId("chat-1"), 1),
    rank=0,
    argv=("engine",),
    env={},
    workdir="/",
    stdin=False,
    output_limit_bytes=0,
    ignore_lease=False,
    gpus=(),
    seq=1,
)
KEPT = KeepOrder("chat", kept_life.ARTEFACT, "default", 1, 1, kept_life.READY)


class HeldStore(ArtefactStore):
    """A store whose copies wait until they may go on."""

    def __init__(self, root: Path) -> None:
        super().__init__(root, 1 << 20)
        self.begun, self.may_go_on = threading.Event(), threading.Event()

    def lend(self, tenant: str, model: str, key: str, content: str, target: Path) -> bool:
        self.begun.set()
        self.may_go_on.wait(WAIT_S)
        return super().lend(tenant, model, key, content, target)


class Node:
    """One node that keeps compile products of the model chat."""

    def __init__(self, folder: Path) -> None:
        machine = Machine(node_id="node-1", address="127.0.0.1")
        self.resident = Resident(machine, folder / "state", folder / "memory", 1 << 20)
        self.resident.jobs_dir.mkdir(parents=True)
        self.store = self.resident.artefacts = HeldStore(folder / "state" / "artefacts")
        self.said: list[Observation] = []
        self.resident.tell = self.said.append
        keeps = Keeps(wanted={kept_key("chat", kept_life.ARTEFACT): KEPT})
        self.resident.keeps = lambda: keeps
        self.wanted = True
        source = folder / "compiled"
        source.mkdir()
        (source / "kernel").write_bytes(KERNEL)
        self.store.load()
        key = key_of_start(LAUNCH, ORDER, (), {})
        self.store.save("default", "chat", key, str(source), (), 5_000)

    @property
    def job(self) -> Path:
        return self.resident.jobs_dir / "chat-1.1"

    async def begin(self) -> Launch | None:
        """Prepare the replica; remove its directory if that is refused, as the agent does."""
        try:
            return await self.resident.prepare(LAUNCH, ORDER, (), {}, lambda: self.wanted)
        except Refused:
            remove_tree(self.job)
            return None

    async def idle(self) -> None:
        """Wait until the thread of the compile products has done what it was given."""
        await asyncio.wrap_future(self.resident.thread.submit(int))


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.store.may_go_on.set()
    for threads in (made.resident.thread, made.resident.fills):
        threads.shutdown()
    made.resident.engines.close()


@pytest.mark.parametrize("tier", [kept_life.HOST, kept_life.ARTEFACT, kept_life.GPU])
async def test_bug_that_one_model_meets_is_reported_as_its_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tier: str
) -> None:
    def fails(*_: object) -> None:
        raise RecursionError("too deep")

    monkeypatch.setattr(node.resident, "_bring", fails)
    monkeypatch.setattr(node.resident.on_devices, "bring", fails)
    order = replace(KEPT, tier=tier)
    await node.resident.carry_out(KeepData(order, remove=False))
    failed, done = node.said
    assert isinstance(failed, KeepSeen) and failed.state == kept_life.FAILED
    assert "RecursionError('too deep')" in failed.detail and "Traceback" in caplog.text
    assert done == KeepDone("chat", tier)


async def test_a_start_that_is_stopped_during_the_copy_costs_the_node_nothing(node: Node) -> None:
    beginning = asyncio.ensure_future(node.begin())
    assert await asyncio.to_thread(node.store.begun.wait, WAIT_S)
    node.wanted = False
    await asyncio.wait((beginning,), timeout=3 * LOOK_S)
    node.store.may_go_on.set()
    assert await beginning is None
    await node.idle()
    assert list(node.store.known) == [("default", "chat")] and node.said == []
    assert list(node.resident.jobs_dir.iterdir()) == []


async def test_a_start_that_is_stopped_before_its_copy_begins_is_not_copied(node: Node) -> None:
    busy = node.resident.thread.submit(node.store.may_go_on.wait, WAIT_S)
    beginning = asyncio.ensure_future(node.begin())
    await asyncio.sleep(LOOK_S)
    node.wanted = False
    assert await asyncio.wait_for(beginning, WAIT_S / 2) is None
    assert not busy.done()
    node.store.may_go_on.set()
    await node.idle()
    assert not node.store.begun.is_set() and list(node.resident.jobs_dir.iterdir()) == []


async def test_a_copy_that_cannot_be_written_is_no_damage_of_what_the_node_keeps(
    node: Node,
) -> None:
    cache = node.job / CACHE
    cache.mkdir(parents=True)
    (cache / "kernel").write_bytes(b"in the way")
    node.store.may_go_on.set()
    launch = await node.begin()
    assert launch is not None and launch.env[ARTEFACTS] == str(cache)
    assert not (cache / "kernel").exists()
    assert list(node.store.known) == [("default", "chat")] and node.said == []
    remove_tree(node.job)
    assert await node.begin() is not None
    assert (cache / "kernel").read_bytes() == KERNEL


async def test_starts_of_a_tenant_whose_files_do_not_answer_leave_others_their_compile_products(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def read(launch: Launch, order: StartOrder, *more: object) -> str:
        if order.tenant == "stuck":
            answers.wait(2 * WAIT_S)
        return key_of_start(launch, order, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(resident, "key_of_start", read)
    slow = replace(KEPT, model="slow", tenant="stuck")
    node.resident.keeps().wanted[kept_key("slow", kept_life.ARTEFACT)] = slow
    order = replace(ORDER, tenant="stuck", spec=replace(SPEC, serve=Serve("slow", 1)))
    stuck = [
        asyncio.ensure_future(
            node.resident.prepare(
                launch=replace(LAUNCH, ref=AttemptRef(JobId(f"slow-{number}"), 1)),
                order=order,
                gpus=(),
                drivers={},
                wanted=lambda: True,
            )
        )
        for number in range(STARTS)
    ]
    await asyncio.sleep(0)
    node.store.may_go_on.set()
    launch = await node.begin()
    answers.set()
    await asyncio.gather(*stuck)
    assert launch is not None and launch.env[ARTEFACTS] == str(node.job / CACHE)
