"""The images that this agent pulled: whose they are, how far a pull is, and their bound on disk.

Only images that this agent pulled are ever removed, the least recently used first, and never one
that a job uses. An image that came with a tenant's credentials is given to other tenants only
after a pull of their own, so the registry decides who may use it. The list survives the agent in
`images.json`; credentials never do. Tests: tests/integration/test_container_images.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.errors import Unavailable
from libs.common.messages.pull_messages import PullReport
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.machine import synced_file
from services.node_agent.runtimes.container import Image
from services.node_agent.runtimes.engine import Engine, while_wanted
from services.node_agent.runtimes.pull_progress import Progress

FILE: Final = "images.json"
IMAGES_MAX: Final = 10_000
# One removal asks the engine a few times, so a start waits for at most so many.
REMOVED_AT_ONCE: Final = 16
LOOK_S: Final = 0.2

_encode = msgspec.msgpack.Encoder().encode
logger = logging.getLogger(__name__)

Credentials = Callable[[], Coroutine[Any, Any, str]]


@dataclass(frozen=True)
class Wanted:
    """An attempt's wish for an image.

    `key` names the attempt. `credentials` asks for the tenant's for the image's registry.
    `is_wanted` turns false when the attempt is to end.
    """

    name: str
    key: str
    tenant: str
    credentials: Credentials
    is_wanted: Callable[[], bool]


class Pulled(msgspec.Struct):
    """One image of this agent. `tenants` pulled it with credentials; none: it is open to all.

    `used_ns` is a time of the wall clock.
    """

    names: list[str]
    size_bytes: int
    used_ns: int
    tenants: list[str] = []


class Images:
    """The images of one agent, in its state directory. `bytes_max` 0: no bound."""

    def __init__(self, state_dir: Path, bytes_max: int = 0) -> None:
        self.path, self.bytes_max = state_dir / FILE, bytes_max
        self.pulled: dict[str, Pulled] | None = None
        # Images of attempts that have begun since this agent did, by attempt.
        self.used: dict[str, str] = {}
        self.pulls: dict[str, Progress] = {}
        # Attempts whose pull with credentials is under way: the image may be there before its note.
        self.private: set[str] = set()
        self.unreadable = False
        self.lock = asyncio.Lock()

    async def ready(self, engine: Engine, wanted: Wanted) -> Image:
        """Return the image for an attempt; pull it unless it is here for the attempt's tenant.

        Raises NoImage, Unavailable, or Refused if the attempt is not wanted any more.
        """
        await self._load()
        found = await while_wanted(self._known_image(engine, wanted.name), wanted.is_wanted)
        if found is None or not self._is_open(found, wanted.tenant):
            found = await self._pull(engine, wanted)
        self.used[wanted.key] = found.id
        await self._bound(engine, found)
        return found

    def progress(self, key: str) -> str:
        """Return how far the pull for an attempt is, in words; empty without a pull."""
        found = self.pulls.get(key)
        return "" if found is None else found.words or "the registry has sent nothing yet"

    async def listen(self, bus: Bus, node_id: str) -> None:
        """Answer gateways that ask how far the pulls are."""
        await bus.subscribe(ask_node(node_id, "pulls"), self._on_pulls, concurrent=True)

    async def _on_pulls(self, subject: str, data: bytes) -> bytes:
        return _encode(PullReport({key: self.progress(key) for key in self.pulls}))

    def let_go(self, key: str) -> None:
        self.used.pop(key, None)

    async def _pull(self, engine: Engine, wanted: Wanted) -> Image:
        progress = self.pulls[wanted.key] = Progress()
        try:
            given = await while_wanted(wanted.credentials(), wanted.is_wanted)
            if given:
                self.private.add(wanted.key)
            pull = engine.pull(wanted.name, given, progress)
            found = await while_wanted(pull, wanted.is_wanted)
            self._note(found, wanted.name, wanted.tenant if given else "")
        finally:
            del self.pulls[wanted.key]
            self.private.discard(wanted.key)
        return found

    def _note(self, found: Image, name: str, tenant: str) -> None:
        """Note an image that was pulled; by a tenant with credentials, or openly."""
        known = self._known.get(found.id)
        tenants = {*(known.tenants if known else ()), tenant} if tenant else set()
        names = {*(known.names if known else ()), name}
        self._known[found.id] = Pulled(
            sorted(names), found.size_bytes, time.time_ns(), sorted(tenants)
        )

    async def _known_image(self, engine: Engine, name: str) -> Image | None:
        """Return an image of the engine, once it is sure whose it is."""
        while True:
            found = await engine.image(name)
            if found is None or found.is_local or found.id in self._known or not self.private:
                return found
            await asyncio.sleep(LOOK_S)

    @property
    def _known(self) -> dict[str, Pulled]:
        assert self.pulled is not None, "the list is loaded before an image is asked for"
        return self.pulled

    def _is_open(self, image: Image, tenant: str) -> bool:
        known = self._known.get(image.id)
        if known is None:
            return image.is_local or not self.unreadable
        return not known.tenants or tenant in known.tenants

    async def _bound(self, engine: Engine, image: Image) -> None:
        """Note the use of an image, and remove others until the bound holds."""
        async with self.lock:
            known = self._known.get(image.id)
            if known is None:
                return
            known.used_ns = time.time_ns()
            try:
                await self._remove_least_used(engine)
            except Unavailable as error:
                logger.warning("images cannot be removed: %s", error)
            await asyncio.to_thread(
                synced_file.replace, self.path, msgspec.json.encode(self._known)
            )

    async def _remove_least_used(self, engine: Engine) -> None:
        left = sum(each.size_bytes for each in self._known.values())
        free = [
            (each.used_ns, image_id)
            for image_id, each in self._known.items()
            if image_id not in self.used.values()
        ]
        for _, image_id in sorted(free)[:REMOVED_AT_ONCE]:
            if not self.bytes_max or (left <= self.bytes_max and len(self._known) <= IMAGES_MAX):
                return
            known = self._known[image_id]
            if await engine.remove_image(image_id, known.names):
                del self._known[image_id]
                left -= known.size_bytes
                logger.info("image %s is removed: MUSTER_CONTAINER_IMAGE_BYTES", known.names)

    async def _load(self) -> None:
        if self.pulled is not None:
            return
        try:
            text = await asyncio.to_thread(self.path.read_bytes)
            found = msgspec.json.decode(text, type=dict[str, Pulled])
        except FileNotFoundError:
            found = {}
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read, so images are pulled again: %s", self.path, error)
            found, self.unreadable = {}, True
        if self.pulled is None:
            self.pulled = found
