"""A node of the fold: what it registered, who is on it, and whether it is lost."""

import msgspec

from libs.common.life import node_life
from libs.common.model import AttemptRef, GpuId, JobId, Member, NodeId


class Node(msgspec.Struct):
    """A machine.

    `members` are the jobs whose current attempt has a member here. It is lost while `lost` (the
    highest incarnation declared lost) is not below `returned`, whatever came in which order; of
    `lost`, up to `dead` nothing can be alive. `word` is the last of operators: (incarnation, lost)
    as NodeDeclaredDead says them. `replaced` are the incarnations that an agent with another state
    directory replaced, in order, until they are declared lost: what they started may be alive,
    unknown to the agent. Up to `severed` the same is true of what ignores the lease, until it is
    declared dead. Up to `gone` the agent of the same directory has begun again since: a placement
    there that comes later in the log never reached it. `held` is what is promised of the host, by
    attempt key: (thousandths of a CPU, bytes). `reserved` is kept for jobs that are not placed yet
    (`preemption_fold.py`).
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
    reason: str = ""
    gpus: list[GpuId] = []
    # All that it last registered, where another node claims some of it (`claim_fold.py`); how many
    # UUIDs it ever brought into the fold.
    listed: list[GpuId] = []
    known: int = 0
    # From its last registration: devices that it does not show, devices ignored because of
    # UUIDS_MAX, and what its agent left out.
    absent: tuple[GpuId, ...] = ()
    gpus_ignored: int = 0
    left_out: tuple[str, ...] = ()
    accounted: dict[str, AttemptRef] = {}
    members: dict[JobId, int] = {}
    cpus_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}
    rack: str = ""
    spine: str = ""
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}
    drivers: dict[str, str] = {}
    takes_controls: bool = False
    held: dict[str, tuple[int, int]] = {}
    reserved: dict[JobId, Member] = {}
    # Why the node gets no new placements although it is usable; empty for a node that is trusted. A
    # registration ends it.
    distrusted: str = ""
    # Reason why the servers refuse its key for ever; empty for an accepted key.
    revoked: str = ""
    # Commits on its subject that readers ignored since it first registered: their number, and the
    # last one.
    ignored: int = 0
    ignored_seq: int = 0
    ignored_reason: str = ""

    @property
    def usable(self) -> bool:
        return self.state in node_life.USABLE

    @property
    def takes_work(self) -> bool:
        """Whether new placements may go there."""
        return self.usable and not self.distrusted and not self.revoked

    @property
    def declared_dead(self) -> bool:
        """An operator has spoken of the silence that is now, and NodeLost has not followed yet."""
        return (
            not self.usable
            and self.word == (self.incarnation, self.lost)
            and self.dead < self.incarnation
        )
