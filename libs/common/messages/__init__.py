"""What the scheduler, the agents and the gateway say to each other beside the log, as typed
MessagePack.

Pure. None of this is stored, and none of it is believed without its guards: epoch, node
incarnation, attempt and commit sequence. An order repeats what JobPlaced said; an agent chooses
nothing.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from libs.common.model import AttemptRef, GpuHold, GpuId, JobId, JobSpec, NodeId

# Of orders in one message; one order alone may be larger: its spec is a part of one fact, its peers
# are at most 1,024. Well below what a server takes (`bus.MESSAGE_BYTES_MAX`).
PAGE_BYTES_MAX: Final = 512 << 10
REMOVED: Final = "removed"


class Peer(msgspec.Struct, frozen=True):
    """One member of the attempt, by rank."""

    node_id: NodeId
    address: str
    gpus: int


class StartOrder(msgspec.Struct, frozen=True, tag="start"):
    """Start this member. `seq` is the sequence of the commit that placed it."""

    job_id: JobId
    attempt: int
    incarnation: int
    seq: int
    rank: int
    gpus: tuple[GpuHold, ...]
    spec: JobSpec
    tenant: str
    user: str
    peers: tuple[Peer, ...]
    port: int


class StopOrder(msgspec.Struct, frozen=True, tag="stop"):
    """End this attempt: `signal` first, KILL after `grace_ms`.

    An attempt that never began here must never begin.
    """

    job_id: JobId
    attempt: int
    seq: int
    reason: str
    signal: int
    grace_ms: int


Order = StartOrder | StopOrder


class ControlOrder(msgspec.Struct, frozen=True):
    """What a device shall be told (`device_controls.py`), by the sequence of the commit that asked
    for it.

    `outcome` and `detail` are what the log knows of it: empty until its node has said, and
    `in_force` what the device was told last. `request` 0: nobody asked.
    """

    uuid: GpuId
    control: str
    value: str
    request: int
    outcome: str = ""
    detail: str = ""
    in_force: str = ""


AnyOrder = Order | ControlOrder
Told = TypeVar("Told", bound=AnyOrder)


class Orders(msgspec.Struct, frozen=True):
    """scheduler -> agent on orders.<node>."""

    epoch: int
    orders: tuple[Order, ...]
    controls: tuple[ControlOrder, ...] = ()


class Vitals(msgspec.Struct, frozen=True):
    """scheduler -> gateway: how long ago each node was heard, and how long its last placements took
    to decide.

    `dropped` counts the messages of nodes that it did not believe or could not read.
    """

    epoch: int
    heard_ms_ago: dict[NodeId, int]
    decisions: int = 0
    decision_p50_us: float = 0.0
    decision_p99_us: float = 0.0
    dropped: int = 0


class Heartbeat(msgspec.Struct, frozen=True):
    """agent -> scheduler. `sent_boot_ns` is the agent's own clock and comes back in the lease."""

    node_id: NodeId
    incarnation: int
    sent_boot_ns: int
    digest: str
    # How many nodes are in the roster that this agent keeps on its disk; never fewer later, unless
    # the disk is lost.
    roster_nodes: int = 0
    # The last lease that this agent was granted: when the heartbeat was sent that it answered, and
    # how long it took to come.
    lease_sent_ns: int = 0
    lease_took_ns: int = 0
    # Of which term the lease in this node's lease file is, as far as this process knows; 0 when it
    # wrote none.
    lease_epoch: int = 0
    # As of which commit the roster on this agent's disk is.
    roster_seq: int = 0


class Lease(msgspec.Struct, frozen=True):
    """scheduler -> agent, counted by the agent from when it sent the heartbeat.

    `verdict`: ok; lost (the log says so: begin again as a new incarnation); unknown (not registered
    as this incarnation yet); removed (for ever: the agent ends). `lease_ms` 0 grants nothing.
    `digest` is of what this node should run, as of commit `seq`; `roster` is the digest of the
    roster. `incarnation` is the last of this node that the log holds. `distrusted`: readers of the
    log ignored a commit on this node's subject; an agent that did not write it has lost its subject
    to another process. `registered_seq` is the commit of the registration that stands for this
    node, 0 where the scheduler does not know it.
    """

    epoch: int
    verdict: str
    sent_boot_ns: int
    lease_ms: int
    heartbeat_ms: int
    digest: str
    seq: int
    roster: str = ""
    incarnation: int = 0
    distrusted: bool = False
    registered_seq: int = 0


class RosterEntry(msgspec.Struct, frozen=True, array_like=True):
    """A registered node: where its agent hears its peers ("ip:port"), and the nkey that it signs
    with.

    Empty: it does not, or it leaves the cluster and is not asked nor believed any more. `removed`:
    it is not counted either.
    """

    node_id: NodeId
    address: str
    key: str
    incarnation: int
    removed: bool = False


class Roster(msgspec.Struct, frozen=True):
    """scheduler -> agent: every registered node as of commit `seq`, in order of first registration.

    A later roster begins with the nodes of an older one: nodes are only added. `digest` leaves
    incarnations out.
    """

    cluster_id: str = ""
    seq: int = 0
    digest: str = ""
    lease_ms: int = 0
    nodes: tuple[RosterEntry, ...] = ()


class DesiredAsk(msgspec.Struct, frozen=True):
    """agent -> scheduler on desired.<node>: one page of the full desired state.

    A page above 0 is of the answer that began with `seq`; when that is not kept any more, the first
    page of a new answer comes instead.
    """

    node_id: NodeId
    incarnation: int
    seq: int = 0
    page: int = 0


class Desired(msgspec.Struct, frozen=True):
    """The full desired state of one node as of commit `seq`: every attempt that it should account
    for, how each should end, and what its devices shall be told.

    Or one page of it: only all `pages` of one (epoch, incarnation, seq) together mean anything.
    """

    epoch: int
    incarnation: int
    seq: int
    starts: tuple[StartOrder, ...]
    stops: tuple[StopOrder, ...]
    page: int = 0
    pages: int = 1
    controls: tuple[ControlOrder, ...] = ()


_encode = msgspec.msgpack.Encoder().encode


def by_bytes(orders: Sequence[Told], bytes_max: int = PAGE_BYTES_MAX) -> list[list[Told]]:
    """The orders in turn, in as few lists as have at most so many bytes each; an order that alone
    has more is alone.

    At least one list.
    """
    found: list[list[Told]] = [[]]
    room = bytes_max
    for order in orders:
        size = len(_encode(order))
        if size > room and found[-1]:
            found.append([])
            room = bytes_max
        found[-1].append(order)
        room -= size
    return found


def digest(
    attempts: Iterable[AttemptRef],
    stops: Iterable[tuple[AttemptRef, int, int]],
    controls: Iterable[tuple[str, str, int]] = (),
) -> str:
    """A short hash of what a node should be running: both ends compute it, a difference asks for
    the full desired state.

    `stops` are (attempt, signal, grace in ms); of several for one attempt the shortest grace
    counts, at both ends. `controls` are (device, control, request).
    """
    lines = [f"{ref.job_id}.{ref.attempt}" for ref in sorted(attempts)] + ["-"]
    lines += [
        f"{ref.job_id}.{ref.attempt} {signal} {grace_ms}" for ref, signal, grace_ms in sorted(stops)
    ]
    lines += [f"{uuid} {control} {request}" for uuid, control, request in sorted(controls)]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


class OutputAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: bytes of a member's output from `offset`; waits up to `wait_ms` when there
    are none yet.
    """

    job_id: JobId
    attempt: int
    stream: str
    offset: int
    max_bytes: int
    wait_ms: int
    # What a channel into the job gives, instead of the job itself (`channel_messages.py`).
    channel: str = ""


class OutputChunk(msgspec.Struct, frozen=True):
    """`offset` is of the first byte (later than asked when older bytes were rotated away); `end` =
    nothing more will come.
    """

    offset: int
    data: bytes
    end: bool
    error: str = ""
    # At the end of a channel to a process: how that ended, and what is to be said of it.
    exit_code: int | None = None
    detail: str = ""


class PruneAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: remove the output of attempts that are over: those that ended so long ago,
    then the oldest until so many bytes are left.

    None: not bounded by that.
    """

    older_than_s: int | None = None
    keep_bytes: int | None = None
    dry_run: bool = False


class PruneDone(msgspec.Struct, frozen=True):
    """What went (or would), and what is left; `uncopied` of those left stay until the end of their
    output is off the node.
    """

    jobs: int = 0
    size_bytes: int = 0
    jobs_left: int = 0
    bytes_left: int = 0
    uncopied: int = 0
    error: str = ""


class StdinPut(msgspec.Struct, frozen=True):
    """gateway -> agent: input bytes at `offset`; repeating one is harmless."""

    job_id: JobId
    attempt: int
    offset: int
    data: bytes
    eof: bool
    # For a channel into the job, instead of the job itself. One without bytes says that the channel
    # is still wanted.
    channel: str = ""


class StdinTaken(msgspec.Struct, frozen=True):
    """How far the job's input was taken; `closed`: this attempt takes no more, for it has heard the
    end or closed its input itself.
    """

    next_offset: int
    error: str = ""
    closed: bool = False


class NewNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that `whatif` adds to a copy of the cluster: how many, with how many GPUs each.

    They are built like a node of the cluster that has GPUs of this `model`; empty: any model.
    """

    nodes: int = 1
    gpus: int = 8
    model: str = ""
