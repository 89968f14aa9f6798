"""The beginning of each connection: two hellos, two proofs, then frames.

A message here is two bytes of length, then JSON. Everything is bounded and has a deadline, so that
a stranger costs one connection for some seconds. Tests: tests/attack/test_transport.py.
"""

import hashlib
import json
import secrets
import socket
import struct
import time
from dataclasses import dataclass, field
from typing import Any, Final

from libs.job.transport.access import PROOF_BYTES_MAX, Access, Refused
from libs.job.transport.errors import Cause, WireFault

VERSION: Final = 1
MESSAGE_BYTES_MAX: Final = 16 << 10
NONCE_BYTES: Final = 16
HANDSHAKE_S: Final = 5.0
CHECKSUMS_MAX: Final = 16
REASON_MAX: Final = 300
BUFFERS_MAX: Final = 1024
BUFFER_BYTES_MAX: Final = 16 << 20
_LENGTH: Final = struct.Struct("<H")


@dataclass(frozen=True)
class Hello:
    """The first message of each side.

    Attributes:
        session: the link's name, chosen by the dialer; the same at each reconnection.
        received: numbered frames that this side has received on the link; -1 on a new link.
        buffers, buffer_bytes: this side's receive buffers.
        checksums, zstd: what this side can compute.
        wire: `tcp` or `rdma`.
    """

    session: str
    received: int
    buffers: int
    buffer_bytes: int
    checksums: tuple[str, ...]
    zstd: bool
    wire: str
    nonce: str = field(default_factory=lambda: secrets.token_hex(NONCE_BYTES))

    def pack(self) -> bytes:
        """Return the message."""
        return json.dumps({"version": VERSION, **vars(self)}).encode()


@dataclass(frozen=True)
class Answer:
    """The second message of each side: its proof, what it has received, and its wire's address."""

    proof: bytes
    received: int
    wire: dict[str, Any]


class Conversation:
    """One handshake over a connected socket, to be finished by `by_s` (monotonic)."""

    def __init__(self, stream: socket.socket, peer: str, by_s: float) -> None:
        self.stream = stream
        self.peer = peer
        self.by_s = by_s

    def send(self, data: bytes) -> None:
        """Send one message. Raises WireFault.

        A message may be too long because of a token that the peer made.
        """
        if len(data) > MESSAGE_BYTES_MAX:
            raise WireFault(Cause.REFUSED, _too_long(len(data)))
        self._limit()
        try:
            self.stream.sendall(_LENGTH.pack(len(data)) + data)
        except OSError as error:
            raise _fault(error) from error

    def take(self) -> bytes:
        """Return one message. Raises WireFault."""
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > MESSAGE_BYTES_MAX:
            raise WireFault(Cause.CORRUPT, _too_long(length))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        found = bytearray()
        while len(found) < count:
            self._limit()
            try:
                data = self.stream.recv(count - len(found))
            except OSError as error:
                raise _fault(error) from error
            if not data:
                raise WireFault(Cause.BROKEN, "the connection ended during the handshake")
            found += data
        return bytes(found)

    def _limit(self) -> None:
        left_s = self.by_s - time.monotonic()
        if left_s <= 0:
            raise WireFault(Cause.STALLED, "the handshake was not finished in time")
        self.stream.settimeout(left_s)


def _too_long(length: int) -> str:
    return f"a handshake message of {length} bytes: the most are {MESSAGE_BYTES_MAX}"


def _fault(error: OSError) -> WireFault:
    if isinstance(error, TimeoutError):
        return WireFault(Cause.STALLED, "the handshake was not finished in time")
    return WireFault(Cause.BROKEN, f"the connection failed: {error.strerror or error}")


def unpack_hello(data: bytes) -> Hello:
    """Return the hello in a message. Raises WireFault: REFUSED or LOST if the peer refused."""
    fields = _fields(data)
    _not_refused(fields)
    version = fields.pop("version", None)
    if version != VERSION:
        raise WireFault(Cause.REFUSED, f"the peer speaks version {version}, this side {VERSION}")
    try:
        hello = Hello(**fields)
        found = _checked(hello)
    except (TypeError, ValueError) as error:
        raise WireFault(Cause.CORRUPT, f"a hello with wrong fields: {error}") from None
    return found


def _checked(hello: Hello) -> Hello:
    numbers = {
        "received": (hello.received, -1, 1 << 62),
        "buffers": (hello.buffers, 1, BUFFERS_MAX),
        "buffer_bytes": (hello.buffer_bytes, 1, BUFFER_BYTES_MAX),
    }
    for name, (value, least, most) in numbers.items():
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{name} is {value!r}: it must be {least} to {most}")
    for name, text in (("nonce", hello.nonce), ("session", hello.session)):
        if len(bytes.fromhex(text)) != NONCE_BYTES:
            raise ValueError(f"{name} has a wrong length")
    if not isinstance(hello.wire, str) or not isinstance(hello.zstd, bool):
        raise ValueError("wire or zstd has a wrong type")
    if not isinstance(hello.checksums, list) or len(hello.checksums) > CHECKSUMS_MAX:
        raise ValueError(f"checksums must be a list of at most {CHECKSUMS_MAX}")
    return hello


def transcript(dialer: bytes, listener: bytes) -> bytes:
    """Return what the proofs cover: a hash of both hellos."""
    return hashlib.sha256(_LENGTH.pack(len(dialer)) + dialer + listener).digest()


def pack_answer(answer: Answer) -> bytes:
    """Return the message of a proof."""
    said = {"proof": answer.proof.hex(), "received": answer.received, "wire": answer.wire}
    return json.dumps(said).encode()


def pack_refusal(fault: WireFault) -> bytes:
    """Return the message that ends a handshake."""
    return json.dumps({"refused": fault.detail, "lost": fault.cause is Cause.LOST}).encode()


def unpack_answer(data: bytes) -> Answer:
    """Return the proof in a message. Raises WireFault: REFUSED or LOST if the peer refused."""
    fields = _fields(data)
    _not_refused(fields)
    try:
        proof = bytes.fromhex(fields["proof"])
        received, wire = fields["received"], fields["wire"]
        if type(received) is not int or not isinstance(wire, dict):
            raise ValueError("a field has the wrong type")
    except (KeyError, TypeError, ValueError) as error:
        raise WireFault(Cause.CORRUPT, f"a proof with wrong fields: {error!r}") from None
    if len(proof) > PROOF_BYTES_MAX:
        raise WireFault(Cause.CORRUPT, f"a proof of {len(proof)} bytes")
    return Answer(proof, received, wire)


def _not_refused(fields: dict[str, Any]) -> None:
    if "refused" in fields:
        cause = Cause.LOST if fields.get("lost") is True else Cause.REFUSED
        raise WireFault(cause, f"the peer refused: {str(fields['refused'])[:REASON_MAX]}")


def _fields(data: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(data)
    except (ValueError, RecursionError):
        raise WireFault(Cause.CORRUPT, "a handshake message that is no JSON") from None
    if not isinstance(fields, dict):
        raise WireFault(Cause.CORRUPT, "a handshake message that is no JSON object")
    return fields


def checked(access: Access, role: str, said: bytes, proof: bytes) -> str:
    """Return the name of the side with that role. Raises WireFault with REFUSED."""
    try:
        return access.check(role, said, proof)
    except Refused as error:
        raise WireFault(Cause.REFUSED, str(error)) from None
