"""Facts about models and their replicas: what the gateways ask for, what the scheduler makes of it,
what the nodes see.

Pure; part of the union in `facts.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, ModelSpec, NodeId, Replica, TenantId


class ModelDeployed(Fact, frozen=True, tag="model.deployed"):
    """Serve this model.

    Said again it is a redeployment: the next generation, which replaces the one before it step by
    step. `request` as in JobSubmitted.
    """

    name: str
    spec: ModelSpec
    tenant: TenantId = TenantId("default")
    user: str = ""
    request: str = ""


class ModelScaled(Fact, frozen=True, tag="model.scaled"):
    name: str
    replicas: int
    user: str = ""


class ModelUndeployed(Fact, frozen=True, tag="model.undeployed"):
    name: str
    user: str = ""


class ReplicasScaled(Fact, frozen=True, tag="replicas.scaled"):
    """Replicas that begin and replicas that are retired.

    The fact is self-contained: later changes of the model do not alter it.

    A retired replica gets no new requests. It is stopped when its last request has ended, or at
    `drain_until_ns` (the wall clock; 0: at once). It then has `grace_s` between TERM and KILL.
    None, as in facts of older versions: the grace of the replica's own spec.
    """

    model: str
    generation: int
    add: tuple[Replica, ...] = ()
    retire: tuple[JobId, ...] = ()
    reason: str = ""
    tenant: TenantId = TenantId("default")
    user: str = ""
    grace_s: int | None = None
    drain_until_ns: int = 0


class ReplicaReady(Fact, frozen=True, tag="replica.ready"):
    """The replica answers its health path: requests may go to it."""

    job_id: JobId
    attempt: int
    node_id: NodeId


class ReplicaUnready(Fact, frozen=True, tag="replica.unready"):
    """A replica that was ready does not answer as it should any more."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    reason: str = ""
