"""The images that this agent pulled: whose they are, how far a pull is, and their bound on disk.

Only images that this agent pulled are ever removed, the least recently used first, and never one
that a job uses; no start waits for that. An image that came with a tenant's credentials is given
to other tenants only after a pull of their own, so the registry decides who may use it. The list
survives the agent in `images.json`; credentials never do. Tests:
tests/integration/test_container_images.py, tests/integration/test_private_images.py.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import msgspec

from libs.common.container_spec import is_digest, pinned, repository_of
from libs.common.errors import Unavailable
from libs.common.messages.pull_messages import PullReport
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.machine import synced_file
from services.node_agent.runtimes.container import Image
from services.node_agent.runtimes.engine import Engine, while_wanted
from services.node_agent.runtimes.faults import NoImage
from services.node_agent.runtimes.private_pulls import ALL, PrivatePulls
from services.node_agent.runtimes.pull_progress import Progress

FILE: Final = "images.json"
IMAGES_MAX: Final = 10_000
# Images that are tried after one start.
REMOVED_AT_ONCE: Final = 16
LOOK_S: Final = 0.2

_encode = msgspec.msgpack.Encoder().encode
logger = logging.getLogger(__name__)

Credentials = Callable[[], Coroutine[Any, Any, str]]


@dataclass(frozen=True)
class Wanted:
    """The image that an attempt needs.

    `key` names the attempt. `credentials` asks for the tenant's for the image's registry.
    `is_wanted` turns false when the attempt is to end. `pin`: see StartOrder.
    """

    name: str
    key: str
    tenant: str
    credentials: Credentials
    is_wanted: Callable[[], bool]
    pin: str = ""


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
        self.private = PrivatePulls(state_dir)
        # Images of attempts that have begun since this agent did, by attempt.
        self.used: dict[str, str] = {}
        self.pulls: dict[str, Progress] = {}
        # The image that is being removed, and a number that changes when a removal begins or ends.
        self.leaving, self.removals = "", 0
        self.removing: asyncio.Task[None] | None = None
        self.loading, self.saving = asyncio.Lock(), asyncio.Lock()

    async def ready(self, engine: Engine, wanted: Wanted) -> Image:
        """Return the image for an attempt; pull it unless it is here for the attempt's tenant.

        Raises NoImage, Unavailable, OSError, or Refused if the attempt is not wanted any more.
        """
        await self._load()
        found = await self._held(engine, await _pinned(engine, wanted))
        if (known := self._known.get(found.id)) is not None:
            known.used_ns = time.time_ns()
            self._bound(engine)
        return found

    async def close(self) -> None:
        """Stop removing images."""
        if self.removing is not None:
            self.removing.cancel()
            await asyncio.gather(self.removing, return_exceptions=True)

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

    async def _held(self, engine: Engine, wanted: Wanted) -> Image:
        """Return the image once it is in use by the attempt, so that it is not removed any more.

        A removal may have begun before that: then look again, and pull again if it is gone.
        """
        while True:
            removals, held = self.removals, self.used.get(wanted.key)
            found = await while_wanted(engine.image(wanted.name), wanted.is_wanted)
            if found is None or not self._is_open(found, wanted):
                found = await self._pull(engine, wanted)
            self.used[wanted.key] = found.id
            is_leaving = self.leaving == found.id
            if found.id == held or (removals == self.removals and not is_leaving):
                return found
            await while_wanted(self._left(found.id), wanted.is_wanted)

    async def _left(self, image_id: str) -> None:
        while self.leaving == image_id:
            await asyncio.sleep(LOOK_S)

    async def _pull(self, engine: Engine, wanted: Wanted) -> Image:
        progress = self.pulls[wanted.key] = Progress()
        try:
            given = await while_wanted(wanted.credentials(), wanted.is_wanted)
            pull = self._pulled_privately if given else self._pulled_openly
            return await pull(engine, wanted, given, progress)
        finally:
            del self.pulls[wanted.key]

    async def _pulled_openly(
        self, engine: Engine, wanted: Wanted, given: str, progress: Progress
    ) -> Image:
        found = await while_wanted(engine.pull(wanted.name, given, progress), wanted.is_wanted)
        self._note(found, wanted.name, "")
        await self._save()
        return found

    async def _pulled_privately(
        self, engine: Engine, wanted: Wanted, given: str, progress: Progress
    ) -> Image:
        """Pull with credentials. Between `begin` and `end` the image may be there without a note,
        for ever if this agent dies or the engine does not answer.
        """
        repository = repository_of(wanted.name)
        await self.private.begin(repository)
        try:
            found = await while_wanted(engine.pull(wanted.name, given, progress), wanted.is_wanted)
        except NoImage:
            await self.private.end(repository)
            raise
        self._note(found, wanted.name, wanted.tenant)
        await self._save()
        await self.private.end(repository)
        return found

    def _note(self, found: Image, name: str, tenant: str) -> None:
        """Note an image that was pulled; by a tenant with credentials, or openly.

        An image that is open stays open.
        """
        known = self._known.get(found.id)
        is_open = not tenant or (known is not None and not known.tenants)
        tenants = set() if is_open else {*(known.tenants if known else ()), tenant}
        names = {*(known.names if known else ()), name}
        self._known[found.id] = Pulled(
            sorted(names), found.size_bytes, time.time_ns(), sorted(tenants)
        )

    @property
    def _known(self) -> dict[str, Pulled]:
        assert self.pulled is not None, "the list is loaded before an image is asked for"
        return self.pulled

    def _is_open(self, image: Image, wanted: Wanted) -> bool:
        """Return whether the attempt's tenant may use an image of the engine without a pull."""
        known = self._known.get(image.id)
        if known is None:
            return image.is_local or not self.private.hides((wanted.name, *image.names))
        return not known.tenants or wanted.tenant in known.tenants

    def _bound(self, engine: Engine) -> None:
        """Store the times of use, and remove images until the bound holds, in the background."""
        if self.removing is None or self.removing.done():
            self.removing = asyncio.create_task(self._remove(engine))

    async def _remove(self, engine: Engine) -> None:
        try:
            await self._save()
            if await self._remove_least_used(engine):
                await self._save()
        except (Unavailable, OSError) as error:
            logger.warning("images cannot be removed: %s", error)

    async def _remove_least_used(self, engine: Engine) -> bool:
        """Return whether an image was removed. Raises Unavailable."""
        left = sum(each.size_bytes for each in self._known.values())
        oldest = sorted((each.used_ns, image_id) for image_id, each in self._known.items())
        tried = removed = 0
        for _, image_id in oldest:
            is_bound = left <= self.bytes_max and len(self._known) <= IMAGES_MAX
            if not self.bytes_max or is_bound or tried == REMOVED_AT_ONCE:
                break
            known = self._known[image_id]
            if image_id in self.used.values():  # perhaps since the removal before
                continue
            tried += 1
            if await self._is_removed(engine, image_id, known):
                left -= known.size_bytes
                removed += 1
        return bool(removed)

    async def _is_removed(self, engine: Engine, image_id: str, known: Pulled) -> bool:
        """Remove an image and return whether it is gone. Raises Unavailable.

        One that stays is tried last the next time.
        """
        self.leaving, self.removals = image_id, self.removals + 1
        try:
            is_gone = await engine.remove_image(image_id, known.names)
        finally:
            self.leaving, self.removals = "", self.removals + 1
        if not is_gone:
            known.used_ns = time.time_ns()
            return False
        if self._known[image_id] is known:  # else it was pulled again meanwhile
            del self._known[image_id]
        logger.info("image %s is removed: MUSTER_CONTAINER_IMAGE_BYTES", known.names)
        return True

    async def _save(self) -> None:
        """Store the list. Raises OSError."""
        async with self.saving:
            await asyncio.to_thread(
                synced_file.replace, self.path, msgspec.json.encode(self._known)
            )

    async def _load(self) -> None:
        async with self.loading:
            if self.pulled is not None:
                return
            await self.private.load()
            try:
                text = await asyncio.to_thread(self.path.read_bytes)
                found = msgspec.json.decode(text, type=dict[str, Pulled])
            except FileNotFoundError:
                found = {}
            except (OSError, msgspec.DecodeError) as error:
                logger.warning(
                    "%s cannot be read, so images are pulled again: %s", self.path, error
                )
                found = {}
                await self.private.begin(ALL)
            self.pulled = found


async def _pinned(engine: Engine, wanted: Wanted) -> Wanted:
    """Return the wanted image, named by digest, for a job that has begun with one.

    An image of that name which no registry has is used as it is. Raises as `while_wanted`.
    """
    if not is_digest(wanted.pin) or "@" in wanted.name:
        return wanted
    name = pinned(wanted.name, wanted.pin)
    if await while_wanted(engine.image(name), wanted.is_wanted) is None:
        tagged = await while_wanted(engine.image(wanted.name), wanted.is_wanted)
        if tagged is not None and tagged.is_local:
            return wanted
    return replace(wanted, name=name)
