"""Messages between scheduler, agents and gateways beside the log, as typed MessagePack.

Pure. Messages are not stored. A receiver checks the guards of each: epoch, node incarnation,
attempt and commit sequence. An order repeats the decision of JobPlaced; an agent chooses nothing.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final, TypeVar

import msgspec

from libs.common.messages.node_orders import ControlOrder as ControlOrder
from libs.common.messages.node_orders import KeepList as KeepList
from libs.common.messages.node_orders import KeepOrder as KeepOrder
from libs.common.messages.node_orders import ProbeOrder as ProbeOrder
from libs.common.model import AttemptRef, GpuHold, JobId, JobSpec, NodeId, life_id

# Bytes of the orders in one message. A single order may be larger: its spec is part of one fact,
# and it has at most 1,024 peers. Well below the server's limit (`bus.MESSAGE_BYTES_MAX`).
PAGE_BYTES_MAX: Final = 512 << 10
REMOVED: Final = "removed"
# The node has not registered since the cluster was restored from a backup.
RESTORED: Final = "restored"


class Peer(msgspec.Struct, frozen=True):
    """One member of the attempt, by rank."""

    node_id: NodeId
    address: str
    gpus: int


class StartOrder(msgspec.Struct, frozen=True, tag="start"):
    """An order to start a member. `seq` is the sequence of the commit that placed it.

    `registry`: the tenant has credentials for the registry of the job's image. `pin` is the digest
    of that image with which the job began; empty if it has not begun with one. `trace` is the job's
    `traceparent`; empty if its spans are not recorded. For a batch of elements of a short array,
    `place` is the place of the first in the array, `count` their number, and `done` the place in
    the batch of the first to run.
    """

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
    registry: bool = False
    pin: str = ""
    trace: str = ""
    place: int = 0
    count: int = 0
    done: int = 0


class StopOrder(msgspec.Struct, frozen=True, tag="stop"):
    """An order to end an attempt: `signal` first, KILL after `grace_ms`.

    If the attempt has not begun on the node, it must never begin.
    """

    job_id: JobId
    attempt: int
    seq: int
    reason: str
    signal: int
    grace_ms: int


Order = StartOrder | StopOrder


AnyOrder = Order | ControlOrder | ProbeOrder | KeepList
Told = TypeVar("Told", bound=AnyOrder)


class Orders(msgspec.Struct, frozen=True):
    """scheduler -> agent on orders.<node>."""

    epoch: int
    orders: tuple[Order, ...]
    controls: tuple[ControlOrder, ...] = ()
    probes: tuple[ProbeOrder, ...] = ()
    keeps: KeepList | None = None


class Vitals(msgspec.Struct, frozen=True):
    """scheduler -> gateway: the age of each node's last heartbeat, and the time of decisions.

    `dropped` counts messages of nodes that had a wrong sender or could not be decoded. `unheard`
    are the usable nodes not heard for a lease and its margin.
    """

    epoch: int
    heard_ms_ago: dict[NodeId, int]
    decisions: int = 0
    decision_p50_us: float = 0.0
    decision_p99_us: float = 0.0
    dropped: int = 0
    unheard: tuple[NodeId, ...] = ()


class Heartbeat(msgspec.Struct, frozen=True):
    """agent -> scheduler: a heartbeat.

    `sent_boot_ns` is the agent's boot clock; the lease returns it. `digest` is of the attempts that
    the agent runs.

    `roster_nodes` and `roster_seq` describe the roster on the agent's disk: its number of nodes,
    which never decreases unless the disk is lost, and its commit. `lease_sent_ns` and
    `lease_took_ns` describe the last granted lease: when its heartbeat was sent, and how long the
    answer took. `lease_epoch` is the term of the lease in the node's lease file as far as this
    process knows; 0: it wrote none. `echo_ns` is when the newest heartbeat was sent whose answer
    this process has heard; -1: an agent of an earlier release, which does not say. `roster_life` is
    the life of the cluster that the roster is of; None: an agent of an earlier release.
    """

    node_id: NodeId
    incarnation: int
    sent_boot_ns: int
    digest: str
    roster_nodes: int = 0
    lease_sent_ns: int = 0
    lease_took_ns: int = 0
    lease_epoch: int = 0
    roster_seq: int = 0
    echo_ns: int = -1
    roster_life: str | None = None


class Lease(msgspec.Struct, frozen=True):
    """scheduler -> agent: a lease, which the agent counts from the time of its heartbeat.

    `verdict` is ok, lost (restart as a new incarnation), unknown (this incarnation is not
    registered yet) or removed (for ever: the agent exits). `lease_ms` 0 grants nothing. `digest` is
    of the attempts that the node should run as of commit `seq`, `roster` is the digest of the
    roster. `incarnation` is the node's last one in the log. `distrusted`: readers ignored a commit
    on this node's subject; an agent that did not write it has lost its subject to another process.
    `registered_seq` is the commit of the node's valid registration; 0: the scheduler does not know
    it. `life` counts the restores of the cluster, and `restore_id` names the last one: an agent
    that has seen another life starts again. The verdict restored says that the node must register
    in this life first.
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
    life: int = 0
    restore_id: str = ""

    @property
    def life_id(self) -> str:
        """Return what tells this life of the cluster from every other."""
        return life_id(self.life, self.restore_id)


class RosterEntry(msgspec.Struct, frozen=True, array_like=True):
    """A registered node: the address of its agent for peers ("ip:port"), and its nkey.

    Empty: the agent does not listen, or the node leaves the cluster and its answers no longer
    count. `removed`: the node itself does not count either.
    """

    node_id: NodeId
    address: str
    key: str
    incarnation: int
    removed: bool = False


class Roster(msgspec.Struct, frozen=True):
    """scheduler -> agent: all registered nodes as of commit `seq`, in order of first registration.

    In one life of the cluster nodes are only added: a later roster begins with those of an older
    one. `digest` ignores incarnations. `life` is the life (`life_id`); a scheduler of an earlier
    release leaves it empty.
    """

    cluster_id: str = ""
    seq: int = 0
    digest: str = ""
    lease_ms: int = 0
    nodes: tuple[RosterEntry, ...] = ()
    life: str = ""


class DesiredAsk(msgspec.Struct, frozen=True):
    """agent -> scheduler on desired.<node>: a request for one page of the node's desired state.

    A page above 0 belongs to the answer with this `seq`. If the scheduler no longer keeps that
    answer, it sends the first page of a new one.
    """

    node_id: NodeId
    incarnation: int
    seq: int = 0
    page: int = 0


class Desired(msgspec.Struct, frozen=True):
    """The desired state of one node as of commit `seq`, or one page of it.

    It has every attempt that the node should account for, every stop, all controls of its devices,
    and all that it keeps of models. Only all `pages` of one (epoch, incarnation, seq) together are
    valid.
    """

    epoch: int
    incarnation: int
    seq: int
    starts: tuple[StartOrder, ...]
    stops: tuple[StopOrder, ...]
    page: int = 0
    pages: int = 1
    controls: tuple[ControlOrder, ...] = ()
    keeps: tuple[KeepOrder, ...] = ()


_encode = msgspec.msgpack.Encoder().encode


def by_bytes(orders: Sequence[Told], bytes_max: int = PAGE_BYTES_MAX) -> list[list[Told]]:
    """Divide the orders, in order, into lists of at most `bytes_max` bytes each.

    A larger order has a list of its own. Return at least one list.
    """
    pages: list[list[Told]] = [[]]
    room = bytes_max
    for order in orders:
        size = len(_encode(order))
        if size > room and pages[-1]:
            pages.append([])
            room = bytes_max
        pages[-1].append(order)
        room -= size
    return pages


def digest(
    attempts: Iterable[AttemptRef],
    stops: Iterable[tuple[AttemptRef, int, int]],
    controls: Iterable[tuple[str, str, int]] = (),
    keeps: Iterable[tuple[str, str, int]] = (),
) -> str:
    """Return a short hash of what a node should run.

    Scheduler and agent both compute it. If they differ, the agent asks for the desired state.
    `stops` are (attempt, signal, grace in ms); of several stops of one attempt the shortest grace
    counts, on both sides. `controls` are (device, control, request), `keeps` are `keep_lines`.
    """
    lines = [f"{ref.job_id}.{ref.attempt}" for ref in sorted(attempts)] + ["-"]
    lines += [
        f"{ref.job_id}.{ref.attempt} {signal} {grace_ms}" for ref, signal, grace_ms in sorted(stops)
    ]
    lines += [f"{uuid} {control} {request}" for uuid, control, request in sorted(controls)]
    lines += [f"{model} {tier} {request}" for model, tier, request in sorted(keeps)]
    return hashlib.blake2b("\n".join(lines).encode(), digest_size=8).hexdigest()


def keep_lines(keeps: Iterable[KeepOrder]) -> list[tuple[str, str, int]]:
    """Return what the digest says about resident data. A grant changes it."""
    return [(each.model, _keep_words(each), each.request) for each in keeps]


def _keep_words(order: KeepOrder) -> str:
    devices = "".join(f" {uuid} {size}" for uuid, size in sorted(order.gpu_bytes.items()))
    return f"{order.tier} {order.number} {order.granted}{devices}"


class OutputAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: a request for a member's output from `offset` on.

    If there is none yet, the agent waits up to `wait_ms`. `channel` is set for the output of a
    channel into the job (`channel_messages.py`).
    """

    job_id: JobId
    attempt: int
    stream: str
    offset: int
    max_bytes: int
    wait_ms: int
    channel: str = ""


class OutputChunk(msgspec.Struct, frozen=True):
    """agent -> gateway: a part of a member's output.

    `offset` is that of the first byte: later than requested if older bytes were rotated away.
    `end`: no more will follow. At the end of a channel to a process, `exit_code` and `detail`
    describe the process's end.
    """

    offset: int
    data: bytes
    end: bool
    error: str = ""
    exit_code: int | None = None
    detail: str = ""


class PruneAsk(msgspec.Struct, frozen=True):
    """gateway -> agent: remove the output of ended attempts.

    First those that ended more than `older_than_s` ago, then the oldest until `keep_bytes` are
    left. None: no such bound.
    """

    older_than_s: int | None = None
    keep_bytes: int | None = None
    dry_run: bool = False


class PruneDone(msgspec.Struct, frozen=True):
    """agent -> gateway: what was removed (or would be), and what is left.

    `uncopied` of those left stay until the end of their output is stored off the node.
    """

    jobs: int = 0
    size_bytes: int = 0
    jobs_left: int = 0
    bytes_left: int = 0
    uncopied: int = 0
    error: str = ""


class StdinPut(msgspec.Struct, frozen=True):
    """gateway -> agent: input bytes at `offset`. A repetition is harmless.

    With a `channel` the bytes are for that channel into the job; without bytes the message says
    that the channel is still wanted.
    """

    job_id: JobId
    attempt: int
    offset: int
    data: bytes
    eof: bool
    channel: str = ""


class StdinTaken(msgspec.Struct, frozen=True):
    """agent -> gateway: how much of the job's input was accepted.

    `closed`: the attempt accepts no more, because it got the end or closed its input itself.
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
