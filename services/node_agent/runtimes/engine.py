"""Pulls images, and finds and removes containers, by the HTTP interface of Docker and Podman.

runner.py creates the containers, under a supervisor. The client of HTTP is imported at the first
use, because an agent without an engine starts sooner without it. Tests:
tests/integration/test_containers.py.
"""

import asyncio
import base64
import os
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from libs.common.errors import Refused, Unavailable
from services.node_agent.runtimes.cdi import FOLDERS
from services.node_agent.runtimes.container import Image
from services.node_agent.runtimes.faults import NoImage
from services.node_agent.runtimes.pull_progress import Progress

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")

# Docker's socket, then Podman's.
SOCKETS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
# For every request except a pull, which may take as long as the job's start.
ASK_S: Final = 10.0
# For the removal of an image, which deletes its files.
REMOVE_S: Final = 60.0
OK: Final = 200
NOT_FOUND: Final = 404
LINE_BYTES_MAX: Final = 64 << 10
# How often a pull checks whether the job is still wanted.
WANTED_LOOK_S: Final = 0.5
DETAIL_CHARS: Final = 400
NO_NAME: Final = "<none>"
PODMAN_WITH_CDI: Final = 5
ROOTLESS: Final = "name=rootless"


class _Listed(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)


class _Info(msgspec.Struct, frozen=True):
    """`buildah`: given by Podman alone."""

    cdi: list[str] | None = msgspec.field(name="CDISpecDirs", default=None)
    buildah: str = msgspec.field(name="BuildahVersion", default="")
    version: str = msgspec.field(name="ServerVersion", default="")
    security: list[str] | None = msgspec.field(name="SecurityOptions", default=None)


class _Config(msgspec.Struct, frozen=True):
    entrypoint: list[str] | None = msgspec.field(name="Entrypoint", default=None)
    command: list[str] | None = msgspec.field(name="Cmd", default=None)
    user: str = msgspec.field(name="User", default="")


class _Inspected(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")
    digests: list[str] | None = msgspec.field(name="RepoDigests", default=None)
    tags: list[str] | None = msgspec.field(name="RepoTags", default=None)
    size_bytes: int = msgspec.field(name="Size", default=0)
    config: _Config | None = msgspec.field(name="Config", default=None)


def socket_of(setting: str) -> str:
    """Return the engine's socket; empty if this machine has none."""
    return next((path for path in ([setting] if setting else SOCKETS) if os.path.exists(path)), "")


class Abilities(msgspec.Struct, frozen=True):
    """Abilities of an engine.

    `cdi_folders`: where it reads CDI files; empty if it takes no devices by CDI. `rootless`: it
    runs as an ordinary user, which is root inside its containers.
    """

    cdi_folders: tuple[str, ...] = ()
    rootless: bool = False


class Engine:
    """The container engine of this machine, at the socket `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def abilities(self) -> Abilities:
        """Return what this engine can do. Raises Unavailable."""
        async with self._session() as session:
            status, text = await self._ask(session, "GET", "/info", ASK_S)
        try:
            return _abilities_of(msgspec.json.decode(text, type=_Info) if status == OK else _Info())
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"the container engine at {self.path} describes itself in a way that cannot be "
                f"decoded: {error}"
            ) from error

    async def image(self, name: str) -> Image | None:
        """Return an image that the engine has; None if it does not have it. Raises Unavailable."""
        async with self._session() as session:
            status, text = await self._ask(session, "GET", f"/images/{name}/json", ASK_S)
        if status == NOT_FOUND:
            return None
        if status != OK:
            raise Unavailable(f"the container engine does not show an image: {_message(text)}")
        try:
            return _image_of(msgspec.json.decode(text, type=_Inspected), name)
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"the container engine at {self.path} describes image {name} in a way that cannot "
                f"be decoded: {error}"
            ) from error

    async def pull(
        self, name: str, credentials: str = "", progress: Progress | None = None
    ) -> Image:
        """Pull an image and return it. `credentials`: see `credentials_of`.

        Raises NoImage with the engine's message, or Unavailable.
        """
        await self._pull(name, credentials, progress or Progress())
        found = await self.image(name)
        if found is None:
            raise NoImage(f"image {name} cannot be pulled: the engine has no image of that name")
        return found

    async def _pull(self, name: str, credentials: str, progress: Progress) -> None:
        import aiohttp

        named = name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"
        headers = {"X-Registry-Auth": credentials} if credentials else {}
        try:
            async with (
                self._session() as session,
                session.post(
                    "/images/create",
                    params={"fromImage": named},
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(None),
                ) as answer,
            ):
                if answer.status != OK:
                    progress.wrong = _message(await answer.read())
                else:
                    await _follow(answer.content, progress)
        except (aiohttp.ClientError, OSError) as error:
            raise self._silent(error) from error
        if progress.wrong:
            raise NoImage(f"image {name} cannot be pulled: {progress.wrong[:DETAIL_CHARS]}")

    async def remove_image(self, image_id: str, names: Iterable[str]) -> bool:
        """Remove an image that has these names; return whether it is gone.

        An image with another tag or with a container stays: an operator may have named it. Raises
        Unavailable.
        """
        async with self._session() as session:
            for name in names:
                found = await self.image(name)
                if found is not None and found.id == image_id:
                    await self._ask(session, "DELETE", f"/images/{name}", REMOVE_S)
            found = await self.image(image_id)
            if found is None or found.tags:
                return found is None
            status, _ = await self._ask(session, "DELETE", f"/images/{image_id}", REMOVE_S)
        return status in (OK, NOT_FOUND)

    async def left(self, label: str) -> list[tuple[str, str]]:
        """Return the containers with the label, running or not: name and the label's value.

        Raises Unavailable.
        """
        async with self._session() as session:
            filters = msgspec.json.encode({"label": [label]}).decode()
            status, text = await self._ask(
                session, "GET", "/containers/json", ASK_S, all="1", filters=filters
            )
        if status != 200:
            raise Unavailable(
                f"the container engine does not list its containers: {_message(text)}"
            )
        name = label.partition("=")[0]
        try:
            found = msgspec.json.decode(text, type=list[_Listed])
        except msgspec.DecodeError as error:
            raise Unavailable(
                f"the container engine at {self.path} gave a list of containers that cannot be "
                f"decoded: {error}"
            ) from error
        return [(each.id, (each.labels or {}).get(name, "")) for each in found]

    async def remove(self, container: str) -> None:
        """Remove a container with all its processes. Raises Unavailable."""
        async with self._session() as session:
            await self._ask(session, "DELETE", f"/containers/{container}", ASK_S, force="1", v="1")

    def _session(self) -> "aiohttp.ClientSession":
        import aiohttp

        return aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(self.path))

    async def _ask(
        self,
        session: "aiohttp.ClientSession",
        method: str,
        url: str,
        within_s: float | None = None,
        **query: str,
    ) -> tuple[int, bytes]:
        import aiohttp

        try:
            timeout = aiohttp.ClientTimeout(within_s)
            async with session.request(method, url, params=query, timeout=timeout) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._silent(error) from error

    def _silent(self, error: Exception) -> Unavailable:
        return Unavailable(
            f"the container engine at {self.path} does not answer: {error or type(error).__name__}"
        )


async def while_wanted(work: Coroutine[Any, Any, T], wanted: Callable[[], bool]) -> T:
    """Return the result of the work on an image, which may hang for ever.

    Raises Refused if the job was stopped in the meantime.
    """
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait([task], timeout=WANTED_LOOK_S))[0]:
            if not wanted():
                raise Refused("it was stopped while its image was pulled")
    finally:
        task.cancel()
    return await task


async def _follow(content: "aiohttp.StreamReader", progress: Progress) -> None:
    """Read the events of a pull to their end, one per line."""
    rest = b""
    async for data in content.iter_any():
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            progress.note(line)
        rest = rest[-LINE_BYTES_MAX:]
    progress.note(rest)


def _abilities_of(info: _Info) -> Abilities:
    """Return the abilities of an engine.

    Docker names its CDI folders from version 25 on, where the feature is enabled. Podman names
    none; its interface takes devices by CDI from version 5 on.
    """
    folders = tuple(info.cdi or ())
    major = info.version.partition(".")[0]
    if info.buildah and info.cdi is None and major.isdecimal() and int(major) >= PODMAN_WITH_CDI:
        folders = FOLDERS
    return Abilities(folders, ROOTLESS in (info.security or ()))


def _image_of(found: _Inspected, name: str) -> Image:
    names = _named(found.digests)
    digests = [each.rpartition("@")[2] for each in names]
    tags = _named(found.tags)
    named = name.rpartition("@")[2]
    digest = named if named in digests else next(iter(digests), found.id)
    config = found.config or _Config()
    return Image(
        id=found.id,
        digest=digest,
        entrypoint=tuple(config.entrypoint or ()),
        command=tuple(config.command or ()),
        user=config.user,
        size_bytes=found.size_bytes,
        names=(*tags, *names),
        tags=tags,
        is_local=not names,
    )


def _named(names: Sequence[str] | None) -> tuple[str, ...]:
    """Return what the engine lists without its word for a name that is missing."""
    return tuple(each for each in names or () if not each.startswith(NO_NAME))


def credentials_of(host: str, user: str, password: str) -> str:
    """Return the header with which the engine signs in to a registry for one pull."""
    text = msgspec.json.encode({"username": user, "password": password, "serveraddress": host})
    return base64.urlsafe_b64encode(text).decode()


def _message(text: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(text)
        return str(found["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text.decode(errors="replace").strip()


def names(found: Iterable[tuple[str, str]]) -> str:
    return ", ".join(container[:12] for container, _ in found)
