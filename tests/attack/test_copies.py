"""A hostile serving node costs a copy one deadline, is named, and leaves nothing behind."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from libs.common.messages.copy_messages import FAILED, CopyState
from libs.common.messages.file_messages import (
    BROKEN,
    BUSY,
    FILE,
    FOLDER,
    LINK,
    PART_BYTES,
    UNREADABLE,
    FilePart,
    Named,
)
from libs.common.messages.link_messages import LinkRequest, PartAsk, Sum
from libs.job.transport.errors import LinkError
from libs.job.transport.transports import TcpTransport
from services.node_agent.fabric.tokens import LinkKey, NodeAccess
from services.node_agent.links import copies, fetching
from tests.integration.copies_world import Fetching, fetching_at
from tests.integration.links_world import NOW_NS, OTHER, ROSTER, SERVER

pytestmark = pytest.mark.attack

# What a liar answers: a message, raw bytes, nothing (silence), or the end of the link.
Answer = Callable[[LinkRequest], FilePart | Sum | bytes | None]
END = b"end"


class Credulous:
    """Access of a node that proves its own name and takes every dialler, without any token."""

    def __init__(self, key: LinkKey) -> None:
        self.own = NodeAccess(key, lambda: ROSTER, lambda: NOW_NS)

    def prove(self, role: str, transcript: bytes) -> bytes:
        return self.own.prove(role, transcript)

    def check(self, role: str, transcript: bytes, proof: bytes) -> str:
        return "anyone"


@contextmanager
def liar(answer: Answer, key: LinkKey = SERVER) -> Iterator[str]:
    """Yield the address of a listener that answers as the test says."""
    listener = TcpTransport(Credulous(key)).listen("127.0.0.1")

    def serve() -> None:
        try:
            with listener.accept(within_s=10.0) as link:
                while True:
                    with link.recv(within_s=10.0) as message:
                        asked = msgspec.msgpack.decode(message.view, type=LinkRequest)
                    found = answer(asked)
                    if found == END:
                        return
                    if found is not None:
                        raw = isinstance(found, bytes)
                        link.send(found if raw else msgspec.msgpack.encode(found))
        except LinkError:
            return

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.address
    finally:
        listener.close()
        thread.join()


def fooled(tmp_path: Path, answer: Answer, key: LinkKey = SERVER, **more: float) -> CopyState:
    """Return the end of a copy from a liar; checks that it failed and left nothing."""
    with fetching_at(tmp_path, **more) as fetching, liar(answer, key) as address:
        (fetching.serving.root / "x").touch()
        start = fetching.request("x", address=address)
        fetching.copies.begin(start)
        done = fetching.ended(start)
        assert done.state == FAILED and fetching.names() == []
        return done


def part(data: bytes, size: int, identity: str = "1") -> FilePart:
    return FilePart(FILE, size, 0o644, identity, data)


def folder(*names: bytes, last: bytes = b"", more: bool = False, kind: str = FOLDER) -> FilePart:
    return FilePart(FOLDER, names=tuple(Named(name, kind) for name in names), last=last, more=more)


def test_wrong_bytes_are_found_by_their_sum(tmp_path: Path) -> None:
    done = fooled(
        tmp_path, lambda ask: part(b"x", 1) if isinstance(ask, PartAsk) else Sum("0" * 64)
    )
    assert done.fault == BROKEN
    assert "from node server failed: the SHA-256 of x is not that" in done.text


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (part(bytes(PART_BYTES + 1), 1), "a part of x has 262145 bytes"),
        (part(b"", -1), "calls x"),
        (FilePart("pipe"), "calls x a 'pipe'"),
        (b"\xff", "cannot be read"),
        (msgspec.msgpack.encode(FilePart(FILE)) + b"\x00" * 300_000, "cannot be read"),
        (folder(b".."), "a folder has the name .."),
        (folder(b"a/b"), "a folder has the name a/b"),
        (folder(b""), "a folder has the name ."),
        (folder(b"a" * 300), "a folder has the name a"),
        (folder(b"b", b"a"), "a folder has the name a"),
        (folder(b"a", b"a"), "a folder has the name a"),
        (folder(more=True), "not in order"),
        (folder(b"b", last=b"a", more=True), "not in order"),
        (FilePart(fault="rubbish", text="y" * 100_000), "node server: yyy"),
    ],
)
def test_an_answer_against_the_rules_ends_the_copy(
    tmp_path: Path, first: FilePart | bytes, words: str
) -> None:
    done = fooled(tmp_path, lambda ask: first)
    assert done.fault == BROKEN and words in done.text and len(done.text) < 1_000


@pytest.mark.parametrize(
    "second", [part(b"x", 3 * PART_BYTES), part(bytes(PART_BYTES), 1, "2"), folder()]
)
def test_a_file_that_becomes_another_ends_the_copy(tmp_path: Path, second: FilePart) -> None:
    def answer(ask: LinkRequest) -> FilePart:
        is_first = isinstance(ask, PartAsk) and ask.offset == 0
        return part(bytes(PART_BYTES), 3 * PART_BYTES) if is_first else second

    done = fooled(tmp_path, answer)
    assert done.fault == UNREADABLE and "on node server changed while it was read" in done.text


def test_folders_without_end_are_bounded_in_depth(tmp_path: Path) -> None:
    done = fooled(tmp_path, lambda ask: folder(b"d", last=b"d"))
    assert "more than 100 folders deep" in done.text


def test_names_without_end_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "ENTRIES_MAX", 20)
    numbers = iter(range(100, 1_000))

    def answer(ask: LinkRequest) -> FilePart:
        name = str(next(numbers)).encode()
        return folder(name, last=name, more=True, kind=LINK)

    assert "more than 20 entries" in fooled(tmp_path, answer).text


@pytest.mark.parametrize("answer", [lambda ask: None, lambda ask: END])
def test_a_silent_or_vanished_node_costs_one_deadline(tmp_path: Path, answer: Answer) -> None:
    def begun(ask: LinkRequest) -> FilePart | Sum | bytes | None:
        is_first = isinstance(ask, PartAsk) and ask.offset == 0
        return part(bytes(PART_BYTES), 9 * PART_BYTES) if is_first else answer(ask)

    began_s = time.monotonic()
    done = fooled(tmp_path, begun, answer_s=0.6)
    assert done.fault == BROKEN and "from node server failed" in done.text
    assert time.monotonic() - began_s < 10.0


def test_a_node_that_trickles_is_bounded_in_time(tmp_path: Path) -> None:
    def answer(ask: LinkRequest) -> FilePart:
        time.sleep(0.05)
        return part(bytes(PART_BYTES), 1_000 * PART_BYTES)

    done = fooled(tmp_path, answer, copy_s=1.0)
    assert "the copy took longer than 1 s" in done.text


def test_another_node_at_the_address_is_refused(tmp_path: Path) -> None:
    done = fooled(tmp_path, lambda ask: part(b"", 0), OTHER)
    assert done.fault == BROKEN and "node other answers at" in done.text


def test_an_address_without_a_listener_costs_one_deadline(tmp_path: Path) -> None:
    with fetching_at(tmp_path, answer_s=0.5) as fetching:
        (fetching.serving.root / "x").touch()
        start = fetching.request("x", address="127.0.0.1:1")
        fetching.copies.begin(start)
        done = fetching.ended(start)
        assert done.fault == BROKEN and "no link to node server at 127.0.0.1:1" in done.text


def hung(fetching: Fetching, count: int) -> None:
    """Begin copies that the rate of the serving node makes slow."""
    (fetching.serving.root / "big").write_bytes(bytes(40 * PART_BYTES))
    for number in range(count):
        begun = fetching.copies.begin(fetching.request("big", f"copy-{number}"))
        assert not begun.fault, begun.text


def test_copies_that_run_are_bounded_for_each_tenant(tmp_path: Path) -> None:
    with fetching_at(tmp_path, bytes_per_s=PART_BYTES) as fetching:
        hung(fetching, copies.COPIES_PER_TENANT)
        refused = fetching.copied("big", "more")
        assert refused.fault == BUSY and "Try again later" in refused.text


def test_an_agent_that_stops_leaves_nothing_of_its_copies(tmp_path: Path) -> None:
    with fetching_at(tmp_path, bytes_per_s=PART_BYTES) as fetching:
        hung(fetching, 2)
        fetching.until(lambda: len(fetching.names()) == 2)
        fetching.copies.stop()
        assert fetching.names() == []


def test_a_job_that_replaces_the_folders_of_a_copy_redirects_nothing(tmp_path: Path) -> None:
    with fetching_at(tmp_path, bytes_per_s=4 * PART_BYTES) as fetching:
        (fetching.serving.root / "out/deep").mkdir(parents=True)
        (fetching.serving.root / "out/a").write_bytes(bytes(8 * PART_BYTES))
        (fetching.serving.root / "out/deep/b").write_bytes(b"mine")
        (tmp_path / "elsewhere").mkdir()
        start = fetching.request("out")
        fetching.copies.begin(start)
        fetching.until(lambda: len(fetching.names()) == 2)
        temporary = fetching.root / fetching.names()[0]
        temporary.rename(fetching.root / "moved")
        temporary.symlink_to(tmp_path / "elsewhere")
        fetching.ended(start)
        assert list((tmp_path / "elsewhere").iterdir()) == []
