"""A multipart body that goes on to a replica while it arrives.

The gateway reads it up to the field `model`, which chooses the replica. Some clients send a large
file before that field: what was read is held in memory up to HELD_BYTES, then on disk. The rest
passes through piece by piece. A client that leaves while its request waits for a replica is noticed
when the rest of its body is read, because only one reader can wait for a message. Tests:
tests/integration/test_openai_forms.py.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from tempfile import SpooledTemporaryFile
from typing import Final

from multidict import CIMultiDict
from starlette.types import Message, Receive

from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.form_space import FormSpace
from services.api_gateway.openai.multipart import ModelField

HELD_BYTES: Final = 256 << 10
PIECE_BYTES: Final = 64 << 10


class FormBody:
    """One body. `fault` is what was wrong with it after the request had begun at a replica."""

    def __init__(
        self,
        receive: Receive,
        content_type: bytes,
        boundary: bytes,
        length: int | None,
        bytes_max: int,
        within_s: float,
        space: FormSpace,
        tenant: str,
    ) -> None:
        self.receive = receive
        self.content_type = content_type
        self.length = length
        self.bytes_max = bytes_max
        self.within_s = within_s
        self.space, self.tenant = space, tenant
        self.fault: ApiError | None = None
        self.can_repeat = True
        self._held = SpooledTemporaryFile(max_size=HELD_BYTES)  # noqa: SIM115  `close` closes it
        self._held_bytes = self._bytes = 0
        self._field = ModelField(boundary)
        self._is_whole = False
        self._left = False
        self._over = asyncio.Event()

    async def model(self) -> str | None:
        """Read up to the field `model` and return it; None if the client disconnected.

        Raises ApiError 400, 408, 413, 429 if the tenant's forms hold too much, and 503 if all
        forms do or the disk has no room.
        """
        field = self._field
        if self.length is not None and self.length > self.bytes_max:
            raise self._too_large()
        try:
            async with asyncio.timeout(self.within_s):
                while not self._is_whole:
                    piece = await self._next()
                    if self._left:
                        return None
                    self.space.take(self.tenant, len(piece))
                    self._held_bytes += len(piece)
                    self._held.write(piece)
                    if field.feed(piece):
                        return field.name
        except TimeoutError as error:
            raise self._too_slow() from error
        except OSError as error:
            text = f"this gateway has no room for the body ({error.strerror}): try again"
            raise ApiError(503, text, "overloaded", retry_after_s=1) from error
        field.close()
        return field.name

    def headers(self, given: CIMultiDict[str], name: str) -> CIMultiDict[str]:
        """Return the headers of the request with this name of the model."""
        headers = given.copy()
        headers["content-type"] = self.content_type.decode("latin-1")
        if self.length is not None:
            change = len(name.encode()) - (self._field.end - self._field.begin)
            headers["content-length"] = str(self.length + change)
        return headers

    async def pieces(self, name: str) -> AsyncIterator[bytes]:
        """Yield the body with this name of the model: what is held, then what arrives.

        It can be called again while `can_repeat` is true.
        """
        field = self._field
        for piece in self._held_pieces(0, field.begin):
            yield piece
        yield name.encode()
        for piece in self._held_pieces(field.end, self._held_bytes):
            yield piece
        until_s = asyncio.get_running_loop().time() + self.within_s
        while not self._is_whole:
            self.can_repeat = False
            yield await self._later(until_s)

    async def watch(self) -> Message:
        """Wait for the client's disconnect, as `receive` does for a body that was read."""
        await self._over.wait()
        return {"type": "http.disconnect"} if self._left else await self.receive()

    def close(self) -> None:
        """Free what is held, and end `watch`: the request is over, whether its body was read."""
        self._held.close()
        self.space.give_back(self.tenant, self._held_bytes)
        self._held_bytes = 0
        self._left = True
        self._over.set()

    def _held_pieces(self, begin: int, end: int) -> Iterator[bytes]:
        """Yield the held bytes from `begin` to `end`."""
        self._held.seek(begin)
        while begin < end and (piece := self._held.read(min(PIECE_BYTES, end - begin))):
            begin += len(piece)
            yield piece

    async def _later(self, until_s: float) -> bytes:
        """Return the next piece of the rest. A fault ends the request at the replica."""
        try:
            async with asyncio.timeout_at(until_s):
                piece = await self._next()
        except TimeoutError as error:
            self.fault = self._too_slow()
            raise self.fault from error
        except ApiError as error:
            self.fault = error
            raise
        if self._left:
            await asyncio.Event().wait()  # the guard ends this request
        return piece

    async def _next(self) -> bytes:
        message = await self.receive()
        if message["type"] == "http.disconnect":
            self._left = True
            self._over.set()
            return b""
        piece = bytes(message.get("body", b""))
        self._bytes += len(piece)
        if self._bytes > self.bytes_max:
            raise self._too_large()
        if not message.get("more_body"):
            self._is_whole = True
            self._over.set()
        return piece

    def _too_large(self) -> ApiError:
        text = (
            f"the form is larger than {self.bytes_max} bytes: send less, or raise "
            "MUSTER_MODEL_FORM_BYTES"
        )
        return ApiError(413, text, "request_too_large")

    def _too_slow(self) -> ApiError:
        text = f"the request body was not complete after {self.within_s:g} s: send it faster"
        return ApiError(408, text, "timeout")
