"""Pulls images, and finds and removes containers, by the HTTP interface of Docker and Podman.

runner.py creates the containers, under a supervisor. Tests: tests/integration/test_containers.py.
"""

import asyncio
import os
from collections.abc import Callable, Iterable
from typing import Any, Final

import aiohttp
import msgspec

from libs.common.errors import Refused, Unavailable

# Docker's socket, then Podman's.
SOCKETS: Final = ("/var/run/docker.sock", "/run/podman/podman.sock")
# For every request except a pull, which may take as long as the job's start.
ASK_S: Final = 10.0
# How often a pull checks whether the job is still wanted.
WANTED_LOOK_S: Final = 0.5
DETAIL_CHARS: Final = 400
# The exit code of Docker's own command.
NO_IMAGE: Final = 125


class NoImage(Refused):
    """The image cannot be pulled. The job ends, because another node would fail too."""


class _Listed(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")
    labels: dict[str, str] | None = msgspec.field(name="Labels", default=None)


def socket_of(setting: str) -> str:
    """Return the engine's socket; empty if this machine has none."""
    return next((path for path in ([setting] if setting else SOCKETS) if os.path.exists(path)), "")


class Engine:
    """The container engine of this machine, at the socket `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    async def pull(self, image: str, wanted: Callable[[], bool]) -> None:
        """Pull an image, unless the engine has it.

        Raises NoImage with the engine's message, Unavailable, or Refused if the job was stopped in
        the meantime, because an engine may hang for ever.
        """
        pulling = asyncio.create_task(self._pull(image))
        try:
            while not (await asyncio.wait([pulling], timeout=WANTED_LOOK_S))[0]:
                if not wanted():
                    raise Refused("it was stopped while its image was pulled")
        finally:
            pulling.cancel()
        await pulling

    async def _pull(self, image: str) -> None:
        async with self._session() as session:
            status, _ = await self._ask(session, "GET", f"/images/{image}/json", ASK_S)
            if status == 200:
                return
            named = image if "@" in image or ":" in image.rpartition("/")[2] else f"{image}:latest"
            status, text = await self._ask(session, "POST", "/images/create", None, fromImage=named)
            wrong = _error(text) if status == 200 else _message(text)
            if status == 200 and not wrong:
                status, text = await self._ask(session, "GET", f"/images/{image}/json", ASK_S)
                wrong = "" if status == 200 else _message(text)
        if wrong:
            raise NoImage(f"image {image} cannot be pulled: {wrong[:DETAIL_CHARS]}")

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

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession("http://engine", connector=aiohttp.UnixConnector(self.path))

    async def _ask(
        self,
        session: aiohttp.ClientSession,
        method: str,
        url: str,
        within_s: float | None = None,
        **query: str,
    ) -> tuple[int, bytes]:
        try:
            timeout = aiohttp.ClientTimeout(within_s)
            async with session.request(method, url, params=query, timeout=timeout) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(
                f"the container engine at {self.path} does not answer: "
                f"{error or type(error).__name__}"
            ) from error


def _message(text: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(text)
        return str(found["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return text.decode(errors="replace").strip()


def _error(text: bytes) -> str:
    """Return the error of a pull, empty if there is none. The answer has one event per line."""
    return next((found for line in text.splitlines() if (found := _error_in(line))), "")


def _error_in(line: bytes) -> str:
    try:
        found: Any = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return ""
    return str(found.get("error", "")) if isinstance(found, dict) else ""


def names(found: Iterable[tuple[str, str]]) -> str:
    return ", ".join(container[:12] for container, _ in found)
