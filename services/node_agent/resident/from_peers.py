"""Fetches kept weights that this node cannot read itself from nodes that have them.

A gateway names the node and brings its token. Each file is compared with its recorded SHA-256. What
is complete stays when a node fails, and the next one gives the rest. A serving node may lie: it can
only fail the session, is named, and is avoided for a while. Tests:
tests/integration/test_peer_weights.py, tests/attack/test_peer_weights.py.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from libs.common.errors import Refused
from libs.common.life import kept_life
from libs.common.messages import KeepOrder
from libs.common.messages.file_messages import BROKEN, FILE
from libs.common.messages.weight_messages import WeightsAsk, WeightsOffer
from libs.common.model import NodeId
from libs.common.safety.folder_walk import remove_tree
from libs.common.state.kept import kept_key
from libs.common.subjects import ask_weights
from libs.common.transport.bus import Bus
from services.node_agent.core.keeping import Keeps
from services.node_agent.core.observations import KeepSeen, Observation
from services.node_agent.fabric.choice import Choices
from services.node_agent.fabric.tokens import LinkKey, NodeAccess
from services.node_agent.jobs.files import Fault
from services.node_agent.jobs.gateways import ask
from services.node_agent.links.asking import ANSWER_S, Peer
from services.node_agent.links.dialling import peer_at
from services.node_agent.links.members import Members
from services.node_agent.resident.avoided import Avoided
from services.node_agent.resident.reports import seen_of
from services.node_agent.resident.trees import FILES_MAX, PATH_MAX, content_of
from services.node_agent.resident.weights import HostWeights

# Fetches of one node at once.
FETCHES_MAX: Final = 2
# One session may last as long as its token.
SESSION_S: Final = 3_600.0
# How long to wait for a source that has no room, or that is coming.
WAIT_S: Final = 900.0
COMING_S: Final = 10.0
LOOK_S: Final = 0.5
AGAIN_S: Final = 10.0
DETAIL_MAX: Final = 2_000
MS: Final = 1_000

logger = logging.getLogger(__name__)


class Stage:
    """The folder of one fetch, and the sizes of its complete files.

    `nodes` gave them, each over the transport of its link.
    """

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder, self.bytes_max = folder, bytes_max
        self.sizes: dict[str, int] = {}
        self.nodes: dict[NodeId, str] = {}

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


class PeerWeights:
    """The fetches of one agent. `answer_s` is the deadline of each answer of a serving node."""

    def __init__(
        self,
        key: LinkKey,
        members: Members,
        bus: Bus,
        wall_ns: Callable[[], int],
        weights: HostWeights,
        answer_s: float = ANSWER_S,
        choices: Choices | None = None,
    ) -> None:
        self.choices = choices
        self.key, self.members, self.bus, self.wall_ns = key, members, bus, wall_ns
        self.weights, self.answer_s = weights, answer_s
        self.tell: Callable[[Observation], None] = lambda seen: None
        self.keeps: Callable[[], Keeps] = Keeps
        self.avoided = Avoided()
        self._places = asyncio.Semaphore(FETCHES_MAX)
        self._closed = threading.Event()

    def close(self) -> None:
        """End all fetches."""
        self._closed.set()

    async def instead(
        self, order: KeepOrder, seen: KeepSeen | None, fills: Executor
    ) -> KeepSeen | None:
        """Return the report about an order that this node carried out, or could not carry out.

        In the latter case other nodes are asked. `fills` is the thread that changes the store.
        None: the order is not wanted any more. A node that failed waits before it measures again.
        """
        if not order.granted:
            await self._rested(order)
        if seen is None or seen.state != kept_life.FAILED:
            return seen
        if not order.granted:
            return await self._measured(order, seen)
        found = await self._filled(order, seen, fills)
        if found is not None and found.state == kept_life.FAILED:
            self._note(order.request, self.key.node_id)
        return found

    async def _rested(self, order: KeepOrder) -> None:
        """Wait until the last failure of this node is long enough ago."""
        while self.key.node_id in self._avoided(order.request) and self._is_wanted(order):
            await self._pause(order, AGAIN_S)

    def _note(self, request: int, node_id: NodeId) -> None:
        """Note that a node failed, or this one."""
        self.avoided.note(request, node_id, time.monotonic())

    def _avoided(self, request: int) -> tuple[NodeId, ...]:
        return self.avoided.nodes(request, time.monotonic())

    async def _measured(self, order: KeepOrder, failed: KeepSeen) -> KeepSeen | None:
        """Wait until another node has the weights, and return their size.

        If none is coming, the entry has failed, and is measured when one has them nevertheless.
        """
        coming_s, is_told = time.monotonic() + COMING_S, False
        while self._is_wanted(order):
            offer = await self._offer(WeightsAsk(order.model, order.request, measures=True))
            if offer.size_bytes > 0:
                detail = f"from node {offer.node_id}; here: {failed.detail}"
                return seen_of(
                    order, kept_life.MEASURED, size_bytes=offer.size_bytes, detail=detail
                )
            if not is_told and not (offer.waits and time.monotonic() < coming_s):
                self.tell(_because(failed, [offer.refused]))
                is_told = True
            await self._pause(order, AGAIN_S if is_told else LOOK_S)
        return None

    async def _filled(self, order: KeepOrder, failed: KeepSeen, fills: Executor) -> KeepSeen | None:
        """Fetch the files, from one node after another; return what became of it."""
        stages: list[Stage] = []
        loop = asyncio.get_running_loop()
        try:
            return await self._from_all(order, failed, fills, stages)
        except (Refused, OSError) as error:
            return _because(failed, [str(error)])
        finally:
            for stage in stages:
                await loop.run_in_executor(fills, remove_tree, stage.folder)

    async def _from_all(
        self, order: KeepOrder, failed: KeepSeen, fills: Executor, stages: list[Stage]
    ) -> KeepSeen | None:
        began_s = time.monotonic()
        by_s, faults = began_s + WAIT_S, list[str]()
        loop = asyncio.get_running_loop()
        while self._is_wanted(order):
            async with self._places:
                offer = await self._offer(
                    WeightsAsk(order.model, order.request, differs=failed.differs)
                )
                if offer.token and offer.size_bytes > order.granted:
                    self.tell(_because(failed, [f"{offer.size_bytes} bytes are needed"]))
                    return seen_of(order, kept_life.MEASURED, size_bytes=offer.size_bytes)
                if offer.token and not stages:
                    made = await loop.run_in_executor(
                        fills, self.weights.staged, order, offer.size_bytes
                    )
                    stages.append(Stage(made, offer.size_bytes))
                if offer.token:
                    fault = await self._fetched(order, offer, stages[0])
                    if fault is None:
                        took_ms = max(1, int((time.monotonic() - began_s) * MS))
                        return await self._adopted(order, offer, fills, stages, took_ms)
                    faults.append(str(fault))
                    by_s = time.monotonic() + WAIT_S
                    continue
            if not offer.waits or time.monotonic() > by_s:
                return _because(failed, [*faults, offer.refused])
            await self._pause(order, LOOK_S)
        return None

    async def _offer(self, question: WeightsAsk) -> WeightsOffer:
        """Return what a gateway offers; nothing if none answers."""
        question = replace(question, avoided=self._avoided(question.request))
        try:
            found = await ask(ask_weights(self.key.node_id), question, WeightsOffer, self.bus)
        except Refused as error:
            return WeightsOffer(refused=str(error))
        for node_id in found.silent:
            self._note(question.request, node_id)
        return found

    async def _fetched(self, order: KeepOrder, offer: WeightsOffer, stage: Stage) -> Fault | None:
        """Fetch all missing files from one node; return why it failed."""
        self.tell(
            seen_of(
                order,
                kept_life.FILLING,
                size_bytes=offer.size_bytes,
                detail=f"from node {offer.node_id}, {len(stage.sizes)} of {len(offer.files)} files",
            )
        )
        await self.members.wait_for(offer.node_id)
        try:
            await asyncio.to_thread(self._fetch, order, offer, stage)
        except Fault as fault:
            logger.warning("weights of model %s: %s", order.model, fault)
            if self._is_wanted(order):
                self._note(order.request, offer.node_id)
            return fault
        return None

    def _fetch(self, order: KeepOrder, offer: WeightsOffer, stage: Stage) -> None:
        """Fetch all missing files over one link, in a thread. Raises Fault."""
        by_s = time.monotonic() + SESSION_S

        def go_on() -> None:
            if self._closed.is_set() or not self._is_wanted(order):
                raise Fault(BROKEN, "the weights are not wanted any more")
            if time.monotonic() > by_s:
                raise Fault(BROKEN, f"node {offer.node_id} took longer than {SESSION_S:g} s")

        check_paths(offer.files)
        access = NodeAccess(self.key, self.members.roster, self.wall_ns, offer.token)
        with peer_at(
            access,
            offer.address,
            offer.node_id,
            go_on=go_on,
            answer_s=self.answer_s,
            choices=self.choices,
            offered=offer.offer,
        ) as peer:
            for path, digest in sorted(offer.files.items()):
                if path not in stage.sizes:
                    stage.sizes[path] = fetch(peer, path, digest, stage)
                    stage.nodes[offer.node_id] = peer.choice.transport

    async def _adopted(
        self,
        order: KeepOrder,
        offer: WeightsOffer,
        fills: Executor,
        stages: list[Stage],
        took_ms: int,
    ) -> KeepSeen:
        """Give the complete folder to the replicas."""
        stage = stages.pop()
        filled = await asyncio.get_running_loop().run_in_executor(
            fills, self.weights.adopt, order, stage.folder, stage.size, offer.files
        )
        return seen_of(
            order,
            kept_life.READY,
            size_bytes=filled.size_bytes,
            content=content_of(filled.files),
            files=filled.files,
            restore_ms=took_ms,
            detail="from "
            + ", ".join(f"node {node} over {way}" for node, way in stage.nodes.items()),
        )

    def _is_wanted(self, order: KeepOrder) -> bool:
        now = self.keeps().wanted.get(kept_key(order.model, order.tier))
        return now is not None and (now.request, now.number, now.granted) == (
            order.request,
            order.number,
            order.granted,
        )

    async def _pause(self, order: KeepOrder, pause_s: float) -> None:
        """Wait, but no longer than the order is wanted."""
        by_s = time.monotonic() + pause_s
        while self._is_wanted(order) and time.monotonic() < by_s:
            await asyncio.sleep(min(LOOK_S, pause_s))


def fetch(peer: Peer, path: str, digest: str, stage: Stage) -> int:
    """Fetch one file to the stage and return its size. Then, or never, the file is there.

    Raises Fault if the other node failed, and Refused if this one cannot write.
    """
    name, to = os.fsencode(path), stage.folder / path
    first = peer.part(name)
    left = stage.bytes_max - stage.size
    if first.kind != FILE or first.size_bytes > left:
        raise Fault(
            BROKEN,
            f"node {peer.node_id} has {first.size_bytes} bytes of {path} ({first.kind}), and at "
            f"most {left} may come",
        )
    is_whole = False
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with open(to, "xb") as stream:
            peer.file(name, first, stream.write, digest)
        is_whole = True
    except OSError as error:
        raise Refused(f"{to} cannot be written: {error.strerror}") from error
    finally:
        if not is_whole:
            with contextlib.suppress(OSError):
                to.unlink()
    return first.size_bytes


def check_paths(files: Mapping[str, str]) -> None:
    """Raise Refused unless all recorded paths stay below a folder: another node recorded them."""
    for path in files:
        parts = path.split("/")
        if (
            not path.isprintable()
            or len(path) > PATH_MAX
            or any(part in ("", ".", "..") for part in parts)
        ):
            raise Refused(f"the recorded file name {path[:PATH_MAX]!r} is not valid")
    if not 0 < len(files) <= FILES_MAX:
        raise Refused(f"{len(files)} files are recorded: 1 to {FILES_MAX} can be fetched")


def _because(failed: KeepSeen, more: list[str]) -> KeepSeen:
    """Return the report of a failure with what the other nodes had to do with it."""
    text = "; ".join(each for each in (failed.detail, *more) if each)
    return replace(failed, detail=text[:DETAIL_MAX])
