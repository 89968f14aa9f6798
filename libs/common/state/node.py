"""A node in the state: its registration, its jobs, and whether it is lost. Pure."""

from typing import Final

import msgspec

from libs.common.life import node_life
from libs.common.model import AttemptRef, GpuId, JobId, Member, NodeId

LINKS_KEPT: Final = 64
# Times of losses; a node that flaps is judged by them.
LOSSES_KEPT: Final = 8
# Characters of a reason.
TEXT_MAX: Final = 300
TRANSPORTS: Final = ("rdma", "tcp")


class LinkView(msgspec.Struct, frozen=True):
    """The transport of a node's last link to another one (rdma or tcp), and why."""

    transport: str
    why: str


class Node(msgspec.Struct):
    """A machine.

    `members` are the jobs whose current attempt has a member here. `lost` is the highest
    incarnation that was declared lost; the node is lost while `lost` is not below `returned`,
    whatever the order of the facts. Up to the incarnation `dead` nothing can be alive. `word` is
    the last verdict of an operator: (incarnation, lost) of NodeDeclaredDead.

    `replaced` are incarnations that an agent with another state directory replaced, in order, until
    they are declared lost: their jobs may be alive, unknown to the new agent. The same is true of
    jobs that ignore the lease up to `severed`, until they are declared dead. Up to `gone` the agent
    of the same directory has restarted since: a placement for such an incarnation that comes later
    in the log never reached it. `unproved` are replaced incarnations that had lost their lease
    watchdog, in order: no end of a lease proves that their jobs have ended, so these may be alive
    until the node is declared dead.

    `held` is what attempts hold of the host, by attempt key: (thousandths of a CPU, bytes). `pools`
    is what the memory broker may grant to each attempt, in bytes over all devices and the host.
    `reserved` are devices for jobs that are not placed yet (`preemption_fold.py`). `listed` are all
    devices of its last registration, if another node claims some of them (`claim_fold.py`). `known`
    counts the UUIDs that it ever registered. `absent`, `gpus_ignored` and `left_out` are from the
    last registration: devices that no driver shows, devices beyond UUIDS_MAX, and what the agent
    left out.

    `link_address` is where its agent takes links of other agents; empty: nowhere. `links` are those
    that it opened since it registered, by the other node; LINKS_KEPT of them, the last ones.
    `fabric_address` is where its agent takes probes; empty: nowhere. `measured_rack` is its rack as
    measured; with `measured_first` it counts before the declared one. `drained_by` is
    the fabric test for which the scheduler drained it, `drain_cleared` the one whose drain an
    operator ended.
    `kept` is what resident data holds of its memory, in bytes by `kept_key`; `keeps`: its agent can
    hold such data.

    `distrusted` is why the node gets no placements although it is usable; a registration ends it.
    `revoked` is why the servers refuse its key for ever. `ignored` counts commits of the node that
    readers ignored since it first registered; the other two fields are about the last one.

    `unguarded` is why its lease watchdog is missing; empty: it runs. `fence_ms` is the time of the
    hardware watchdog that its settings name, 0 without one. `armed_ms` is the time in which an
    armed hardware watchdog resets it, 0 while none is known to be armed.
    `ended` is the highest incarnation that was lost with a proof
    that its jobs have ended; jobs of later ones may be alive although the node is lost.
    `losses_ns` are the stamps of its last losses by silence. It is held back until `held_until_ns`
    for the losses up to `held_for_ns`, unless the hold of `hold_over_ns` is over.
    """

    node_id: NodeId
    state: str
    incarnation: int = 0
    lost: int = 0
    returned: int = 0
    dead: int = 0
    word: tuple[int, int] = (0, 0)
    gone: int = 0
    severed: int = 0
    address: str = ""
    boot_id: str = ""
    version: str = ""
    simulated: bool = False
    registered_ns: int = 0
    registered_seq: int = 0
    peer_address: str = ""
    peer_key: str = ""
    directory: str = ""
    replaced: list[int] = []
    unproved: list[int] = []
    reason: str = ""
    gpus: list[GpuId] = []
    listed: list[GpuId] = []
    known: int = 0
    absent: tuple[GpuId, ...] = ()
    gpus_ignored: int = 0
    left_out: tuple[str, ...] = ()
    transport: str = ""
    transport_why: str = ""
    links: dict[NodeId, LinkView] = {}
    accounted: dict[str, AttemptRef] = {}
    members: dict[JobId, int] = {}
    cpus_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    rack: str = ""
    spine: str = ""
    fabric_address: str = ""
    link_address: str = ""
    measured_rack: str = ""
    measured_first: bool = False
    drained_by: str = ""
    drain_evidence: str = ""
    drain_cleared: str = ""
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}
    drivers: dict[str, str] = {}
    takes_controls: bool = False
    keeps: bool = False
    kept: dict[str, int] = {}
    held: dict[str, tuple[int, int]] = {}
    pools: dict[str, int] = {}
    reserved: dict[JobId, Member] = {}
    distrusted: str = ""
    revoked: str = ""
    ignored: int = 0
    ignored_seq: int = 0
    ignored_reason: str = ""
    unguarded: str = ""
    fence_ms: int = 0
    armed_ms: int = 0
    ended: int = 0
    losses_ns: tuple[int, ...] = ()
    held_until_ns: int = 0
    held_for_ns: int = 0
    hold_over_ns: int = 0
    hold_reason: str = ""

    @property
    def usable(self) -> bool:
        return self.state in node_life.USABLE

    @property
    def takes_work(self) -> bool:
        """True if new work may be placed on the node."""
        return self.usable and not (
            self.distrusted or self.revoked or self.is_drained or self.withheld
        )

    @property
    def withheld(self) -> str:
        """Return why the node takes no new work although it is usable; empty: it takes some."""
        if self.unguarded:
            return f"its lease watchdog is missing: {self.unguarded}"
        return self.hold_reason if self.is_held else ""

    @property
    def is_held(self) -> bool:
        """True while the node is held back because it was lost again and again."""
        return self.held_until_ns > self.hold_over_ns

    @property
    def is_drained(self) -> bool:
        """True if the scheduler drained the node, and no operator has returned it."""
        return self.drained_by not in ("", self.drain_cleared)

    @property
    def network_rack(self) -> str:
        """The rack that placement uses: the declared one, else the measured one."""
        if self.measured_rack and (self.measured_first or not self.rack):
            return self.measured_rack
        return self.rack

    @property
    def declared_dead(self) -> bool:
        """True if an operator declared this silence final, and NodeLost has not followed yet."""
        return (
            self.state == node_life.UNREACHABLE
            and self.word == (self.incarnation, self.lost)
            and self.dead < self.incarnation
        )
