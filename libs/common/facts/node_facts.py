"""Facts about nodes: registrations by agents, and verdicts of operators about silent nodes."""

from libs.common.facts.fact import Fact
from libs.common.model import AttemptRef, Gpu, GpuId, NodeId


class LinkChosen(Fact, frozen=True, tag="node.link_chosen"):
    """An agent opened a link to another one over another transport than before, or its first one.

    `transport` is rdma or tcp, and `why` the reason. `incarnation` is the agent's.
    """

    node_id: NodeId
    incarnation: int
    peer: NodeId
    transport: str
    why: str = ""


class NodeDeclaredDead(Fact, frozen=True, tag="node.declared_dead"):
    """An operator declared a silent node dead: none of its processes is alive.

    The verdict covers all incarnations up to `incarnation`, the last that registered. `lost` is the
    incarnation that the scheduler had declared lost at that time. The fact is about this silence,
    not about a later one. If the scheduler had not declared `incarnation` lost, it does so if it
    has not heard the node for a lease and its margin.
    """

    node_id: NodeId
    incarnation: int
    lost: int
    user: str = ""


class NodeRegistered(Fact, frozen=True, tag="node.registered"):
    """An agent started and registered its node.

    `attempts` are all attempts that the agent accounts for: no other attempt is alive on the node.

    `peer_address` ("ip:port") and `peer_key` (a public nkey) are how other agents reach it; empty
    if they cannot. `directory` is a random name of the agent's state directory, which never
    changes. An agent with another directory knows nothing of the attempts that the previous agent
    started: they stay until the scheduler records NodeLost for that incarnation. Empty, as in facts
    older than this field: the same directory as before.

    `cpus_milli` and `memory_bytes` are what jobs may use of the host. `sockets` has the socket of
    each NUMA node. `rack` (leaf switch) and `spine` are the node's place in the network. 0 and
    empty: unknown. `isolation` maps each bound between jobs (memory, cpu, cpuset, pids, devices,
    users, images) to its state: enforced, or not and why. `tells_health`: the agent reports the
    health of its devices again after a start, so reports from another state directory are void.
    `takes_controls`: the agent obeys GpuControlRequested. `drivers` maps names of drivers to
    versions. `absent` are devices of `gpus` that no driver shows although it answers: another node
    that shows such a device gets it. `left_out` names what the agent left out because a fact is
    limited in size. `transport` is what the agent offers for links between nodes, rdma or tcp, and
    `transport_why` the reason; empty: the agent does not say it.
    `fabric_address` ("ip:port") is where the agent takes probes of the fabric; empty: nowhere.
    `keeps`: the agent can keep resident data of models. `link_address` ("ip:port") is where the
    agent takes links of other agents; empty: nowhere. `fence_ms` is the time after which a hardware
    watchdog resets the machine when nothing tends it; 0: there is none. It is the agent's setting:
    WatchdogChanged says whether the device is armed.
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
    transport: str = ""
    transport_why: str = ""
    fabric_address: str = ""
    keeps: bool = False
    link_address: str = ""
    fence_ms: int = 0


class WatchdogChanged(Fact, frozen=True, tag="node.watchdog_changed"):
    """The lease watchdog of a node is missing, or runs again, or its hardware watchdog changed.

    `missing` is the reason; empty: it runs. A registration says that it runs. While it is missing
    the node takes no new jobs, and its silence alone does not prove that its jobs have ended.
    `armed_ms` is the time after which the hardware watchdog resets the machine when nothing tends
    it. 0: none is armed, or the agent does not know. A registration says 0.
    """

    node_id: NodeId
    incarnation: int
    missing: str = ""
    armed_ms: int = 0
