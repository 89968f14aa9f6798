"""Links of a serving node over real sockets, and a dialler with its own key. For the link tests."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import nkeys

from libs.common.messages import Roster, RosterEntry
from libs.common.messages.file_messages import FilePart
from libs.common.messages.link_messages import LinkAsk, LinkRequest, PartAsk, Sum
from libs.common.model import AttemptRef, JobId, NodeId
from libs.job.transport.link import Link
from libs.job.transport.transports import TcpTransport
from services.node_agent.fabric.choice import Choices
from services.node_agent.fabric.tokens import LinkKey, NodeAccess
from services.node_agent.jobs.files import part_of
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members

NOW_NS = 10**18
WITHIN_S = 5.0


def key(name: str, number: int) -> LinkKey:
    seed = nkeys.encode_seed(bytes([number]) * 32, nkeys.PREFIX_BYTE_USER)
    return LinkKey(NodeId(name), bytes(seed))


SERVER, DIALLER, OTHER = key("server", 1), key("dialler", 2), key("other", 3)
ROSTER = Roster(
    cluster_id="cluster",
    nodes=tuple(RosterEntry(each.node_id, "", each.public, 1) for each in (SERVER, DIALLER, OTHER)),
)


class Serving:
    """A serving node whose job j1 of tenant red has the working directory `root`.

    `asked`: the node asked for a newer roster than `roster`.
    """

    def __init__(self, root: Path, bytes_per_s: int = 0, choices: Choices | None = None) -> None:
        self.root = root
        self.now_ns = NOW_NS
        self.roster = ROSTER
        self.asked = threading.Event()
        self.links = Links(
            key=SERVER,
            members=Members(SERVER.node_id, lambda: self.roster, self.asked.set, known_s=WITHIN_S),
            wall_ns=lambda: self.now_ns,
            tenant_of=lambda ref: "red" if ref.job_id == "j1" else "",
            part=lambda ask: part_of("server", self._root_of, ask),
            host="127.0.0.1",
            bytes_per_s=bytes_per_s,
            choices=choices,
        )

    def _root_of(self, ref: AttemptRef) -> tuple[str, bool, list[int]] | None:
        return (str(self.root), False, []) if ref.job_id == "j1" else None

    def ask(self, path: str = "", tenant: str = "red", job: str = "j1") -> LinkAsk:
        return LinkAsk(NodeId("dialler"), tenant, JobId(job), 1, path.encode())

    def token(self, path: str = "") -> bytes:
        granted = self.links.grant(self.ask(path))
        assert granted.token, granted.text
        assert granted.address == self.links.address
        return granted.token

    def access(self, token: bytes, own: LinkKey = DIALLER) -> NodeAccess:
        return NodeAccess(own, lambda: ROSTER, lambda: self.now_ns, token)

    def dial(self, token: bytes, own: LinkKey = DIALLER) -> Link:
        return TcpTransport(self.access(token, own)).connect(self.links.address, WITHIN_S)

    def dial_within(self, token: bytes, within_s: float) -> Link:
        return TcpTransport(self.access(token)).connect(self.links.address, within_s)


@contextmanager
def serving_at(
    root: Path, bytes_per_s: int = 0, choices: Choices | None = None
) -> Iterator[Serving]:
    root.mkdir(exist_ok=True)
    serving = Serving(root, bytes_per_s, choices)
    try:
        yield serving
    finally:
        serving.links.stop()


def answer(link: Link, request: LinkRequest) -> bytes:
    link.send(msgspec.msgpack.encode(request), WITHIN_S)
    with link.recv(WITHIN_S) as message:
        return bytes(message.view)


def part(link: Link, path: str, offset: int = 0) -> FilePart:
    return msgspec.msgpack.decode(answer(link, PartAsk(path.encode(), offset)), type=FilePart)


def summed(link: Link, request: LinkRequest) -> Sum:
    return msgspec.msgpack.decode(answer(link, request), type=Sum)
