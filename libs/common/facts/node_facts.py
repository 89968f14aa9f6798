"""Facts about nodes: registrations by agents, and verdicts of operators about silent nodes."""

from libs.common.facts.fact import Fact
from libs.common.model import AttemptRef, Gpu, GpuId, NodeId


class NodeDeclaredDead(Fact, frozen=True, tag="node.declared_dead"):
    """An operator declared a silent node dead: nothing of it is alive up to `incarnation`, the last
    that registered.

    `lost` is the incarnation that the scheduler held for lost then. The fact is about this silence,
    not about a later one.
    """

    node_id: NodeId
    incarnation: int
    lost: int
    user: str = ""


class NodeRegistered(Fact, frozen=True, tag="node.registered"):
    """An agent started.

    `attempts` are all that it still accounts for: no other attempt is alive on this node.

    `peer_address` ("ip:port") and `peer_key` (a public nkey) are how other agents ask it; empty
    when it cannot be asked. `directory` names the agent's state directory, at random, for ever.
    Another one than the last knows nothing of what the agent before it started: its attempts stay
    until the scheduler says NodeLost of that incarnation. Empty, as all records before this field:
    the same directory as before. `cpus_milli` and `memory_bytes` are what jobs may be given of the
    host; `sockets` says of each NUMA node which socket it is on; `rack` (leaf switch) and `spine`
    where its network is. 0 and empty: not known. `isolation` says of each bound between jobs
    (memory, cpu, cpuset, pids, devices, users, images) that it is enforced, or that it is lost and
    why. `tells_health`: the agent says again what is wrong with its devices, so that of another
    state directory than the last nothing that was said of them before counts. `takes_controls`: the
    agent hears what operators want its devices to be told. `drivers` are the versions of its
    drivers, by name. `absent` are those of `gpus` that no driver shows although it answers: another
    node that shows such a device gets it. `left_out` names what the agent left out because a fact
    may not hold more.
    """

    node_id: NodeId
    incarnation: int
    address: str
    gpus: tuple[Gpu, ...]
    attempts: tuple[AttemptRef, ...] = ()
    boot_id: str = ""
    version: str = ""
    simulated: bool = False
    peer_address: str = ""
    peer_key: str = ""
    directory: str = ""
    cpus_milli: int = 0
    memory_bytes: int = 0
    labels: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
    rack: str = ""
    spine: str = ""
    sockets: tuple[int, ...] = ()
    isolation: dict[str, str] = {}  # noqa: RUF012
    tells_health: bool = False
    takes_controls: bool = False
    drivers: dict[str, str] = {}  # noqa: RUF012
    absent: tuple[GpuId, ...] = ()
    left_out: tuple[str, ...] = ()
