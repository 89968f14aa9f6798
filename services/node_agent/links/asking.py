"""The dialling side of one session: asks the serving node for parts, and checks each answer.

The serving node may lie. Every answer has a bounded size and one deadline, a file has the length
that its first part names, names of a folder come in order, and a sum covers all bytes that came. So
a hostile node can only cause a Fault that names it. Tests: tests/attack/test_copies.py.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import msgspec

from libs.common.messages.file_messages import (
    BROKEN,
    FILE,
    FOLDER,
    MISSING,
    OUTSIDE,
    PART_BYTES,
    PART_NAMES,
    PRUNED,
    UNREADABLE,
    FilePart,
)
from libs.common.messages.link_messages import LinkOffer, LinkRequest, PartAsk, Sum, SumAsk
from libs.common.model import NodeId
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.link import Link
from services.node_agent.jobs.files import Fault

# Parts of a file that are asked for before the first of them has come.
AHEAD: Final = 4
# An answer must come within this time.
ANSWER_S: Final = 30.0
LOOK_S: Final = 0.5
NAME_BYTES_MAX: Final = 255
TEXT_MAX: Final = 500
# Faults that the serving node may name.
WORDS: Final = (MISSING, PRUNED, OUTSIDE, UNREADABLE)

T = TypeVar("T", FilePart, Sum)

_encode = msgspec.msgpack.Encoder().encode


class Peer:
    """The serving node, as one session reaches it. `go_on` raises Fault to end the copy.

    `choice` is the transport of the link, and why.
    """

    def __init__(
        self,
        link: Link,
        node_id: NodeId,
        go_on: Callable[[], None],
        answer_s: float = ANSWER_S,
        choice: LinkOffer | None = None,
    ) -> None:
        self.choice = choice or LinkOffer(link.transport)
        self.link, self.node_id, self.go_on, self.answer_s = link, node_id, go_on, answer_s

    def part(self, path: bytes, after: bytes = b"", offset: int = 0) -> FilePart:
        """Return the part of a file at `offset`, or names of a folder. Raises Fault."""
        self._ask(PartAsk(path, offset, after))
        found = self._take(FilePart)
        if found.kind == FOLDER:
            self._check_names(found, after)
        elif found.kind != FILE or found.size_bytes < 0:
            raise self._broken(f"it calls {_shown(path)} a {found.kind[:64]!r}")
        return found

    def file(
        self, path: bytes, first: FilePart, out: Callable[[bytes], object], expected: str = ""
    ) -> None:
        """Give the bytes of a file to `out`, as many as it had at first. Raises Fault.

        They must have the SHA-256 `expected`; without one, that of what the serving node sent.
        """
        digest, came, left = hashlib.sha256(), 0, first.size_bytes
        for data in self.parts(path, first):
            digest.update(data)
            came += len(data)
            out(data[:left])
            left -= len(data)
        self._check_sum(path, came, digest.hexdigest(), expected)

    def parts(self, path: bytes, first: FilePart, at: int = 0) -> Iterator[bytes]:
        """Yield the parts of a file from offset `at` on, of which `first` came. Raises Fault.

        All are as long as they must be; only the last may be longer, if the file has grown.
        """
        size, asked, part = first.size_bytes, at + PART_BYTES, first
        while True:
            self._check_part(path, part, first, size - at)
            yield part.data
            at += PART_BYTES
            if at >= size:
                return
            while asked < min(size, at + AHEAD * PART_BYTES):
                self._ask(PartAsk(path, asked))
                asked += PART_BYTES
            part = self._take(FilePart)

    def _check_sum(self, path: bytes, came: int, digest: str, expected: str) -> None:
        """Check the SHA-256 of a file of which `came` bytes came."""
        if expected and digest != expected:
            raise self._broken(
                f"{_shown(path)} has the SHA-256 {digest[:12]}, and {expected[:12]} is recorded"
            )
        if expected:
            return
        self._ask(SumAsk(path, came))
        if self._take(Sum).sha256 != digest:
            raise self._broken(f"the SHA-256 of {_shown(path)} is not that of the bytes that came")

    def _check_part(self, path: bytes, part: FilePart, first: FilePart, left: int) -> None:
        """Check one part of a file of which `left` bytes are missing."""
        if len(part.data) > PART_BYTES or part.kind not in (FILE, FOLDER):
            raise self._broken(f"a part of {_shown(path)} has {len(part.data)} bytes")
        is_same = (part.kind, part.identity) == (FILE, first.identity)
        if not is_same or len(part.data) < min(left, PART_BYTES):
            text = f"{_shown(path)} on node {self.node_id} changed while it was read: copy it again"
            raise Fault(UNREADABLE, text)

    def _check_names(self, page: FilePart, after: bytes) -> None:
        """Check that names are plain and in order, so that every page brings the end nearer."""
        last = after
        for each in page.names:
            if each.name <= last or not _is_plain(each.name):
                raise self._broken(f"a folder has the name {_shown(each.name[:NAME_BYTES_MAX])}")
            last = each.name
        if len(page.names) > PART_NAMES or (page.more and (page.last < last or page.last <= after)):
            raise self._broken("the names of a folder are not in order")

    def _ask(self, request: LinkRequest) -> None:
        self.go_on()
        try:
            self.link.send(_encode(request), within_s=self.answer_s)
        except LinkError as error:
            raise self._broken(str(error)) from error

    def _take(self, kind: type[T]) -> T:
        data = self._received()
        try:
            found = msgspec.msgpack.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._broken(f"its answer cannot be read: {error}") from error
        if found.fault:
            word = found.fault if found.fault in WORDS else BROKEN
            text = found.text if isinstance(found, FilePart) else found.fault
            raise Fault(word, f"node {self.node_id}: {text[:TEXT_MAX]}")
        return found

    def _received(self) -> bytes:
        """Return the next answer; check meanwhile that the copy may go on."""
        by_s = time.monotonic() + self.answer_s
        while True:
            self.go_on()
            try:
                with self.link.recv(within_s=LOOK_S) as message:
                    return bytes(message.view)
            except LinkError as error:
                if error.cause is not Cause.STALLED:
                    raise self._broken(str(error)) from error
            if time.monotonic() >= by_s:
                raise self._broken(f"it has not answered for {self.answer_s:g} s")

    def _broken(self, why: str) -> Fault:
        return Fault(BROKEN, f"the copy from node {self.node_id} failed: {why}")


def _is_plain(name: bytes) -> bool:
    """Return whether a name can be created in a folder without leaving it."""
    return (
        0 < len(name) <= NAME_BYTES_MAX
        and name not in (b".", b"..")
        and b"/" not in name
        and b"\0" not in name
    )


def _shown(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace") or "."
