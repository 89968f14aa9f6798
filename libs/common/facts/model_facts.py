"""Facts about models and their replicas, from the gateways, the scheduler and the agents.

Pure; part of the union in `facts/__init__.py`.
"""

from libs.common.facts.fact import Fact
from libs.common.model import JobId, NodeId, TenantId
from libs.common.model_spec import ModelSpec, Replica


class ModelDeployed(Fact, frozen=True, tag="model.deployed"):
    """A user deployed a model.

    A second fact for the same name is a redeployment: the next generation, which replaces the
    previous one step by step. One of a removed tenant is ignored. `request` as in JobSubmitted.
    """

    name: str
    spec: ModelSpec
    tenant: TenantId = TenantId("default")
    user: str = ""
    request: str = ""


class ModelScaled(Fact, frozen=True, tag="model.scaled"):
    """A user set the number of a model's replicas.

    `tenant`, here and in the facts below, is the model's owner when the user asked: a model that
    belongs to another tenant meanwhile is not changed. Empty in facts of older versions.
    """

    name: str
    replicas: int
    user: str = ""
    tenant: TenantId = TenantId("")


class ModelAutoscaled(Fact, frozen=True, tag="model.autoscaled"):
    """The scheduler set the number of replicas of a model that has `scaling`.

    It counts until the next redeployment. `law` are the observations and what follows from them, in
    words.
    """

    name: str
    generation: int
    replicas: int
    law: str = ""


class ModelUndeployed(Fact, frozen=True, tag="model.undeployed"):
    """A user undeployed a model: its replicas are retired."""

    name: str
    user: str = ""
    tenant: TenantId = TenantId("")


class ModelAliasSet(Fact, frozen=True, tag="model.alias_set"):
    """A user gave a model a further name for requests, or took it away (`removed`)."""

    name: str
    alias: str
    removed: bool = False
    user: str = ""
    tenant: TenantId = TenantId("")


class ModelAdapterSet(Fact, frozen=True, tag="model.adapter_set"):
    """A user gave a model a LoRA adapter, changed its path, or took it away (`removed`).

    `path` is its folder as the server of each replica sees it; empty if the server has it already.
    """

    name: str
    adapter: str
    path: str = ""
    removed: bool = False
    user: str = ""
    tenant: TenantId = TenantId("")


class ModelShareSet(Fact, frozen=True, tag="model.share_set"):
    """A user shared a model with the tenant `guest`, or ended that (`removed`).

    `*` stands for all tenants.
    """

    name: str
    guest: str
    removed: bool = False
    user: str = ""
    tenant: TenantId = TenantId("")


class ModelLimitsSet(Fact, frozen=True, tag="model.limits_set"):
    """A user set how many requests and tokens a tenant may use at a model in a minute.

    `guest` is the tenant; `*` stands for each guest without limits of its own. With 0 for both
    numbers its limits end.
    """

    name: str
    guest: str
    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    user: str = ""
    tenant: TenantId = TenantId("")


class ReplicasScaled(Fact, frozen=True, tag="replicas.scaled"):
    """The scheduler added replicas of a model, retired some, or saw that it recovered.

    The fact is self-contained: later changes of the model do not alter it.

    A retired replica gets no new requests. It is stopped when its last request has ended, or at
    `drain_until_ns` (wall clock; 0: at once). It then has `grace_s` between TERM and KILL. None, as
    in facts of older versions: the grace of the replica's own spec. `recovered`: a replica has
    served long enough after a crash, so the model's crashes count from 0 again.
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
    recovered: bool = False


class ReplicaReady(Fact, frozen=True, tag="replica.ready"):
    """A replica answers its health path: the gateways may send it requests."""

    job_id: JobId
    attempt: int
    node_id: NodeId


class ReplicaUnready(Fact, frozen=True, tag="replica.unready"):
    """A replica that was ready stopped answering its health path."""

    job_id: JobId
    attempt: int
    node_id: NodeId
    reason: str = ""


# What users ask for.
ModelWish = (
    ModelDeployed
    | ModelScaled
    | ModelUndeployed
    | ModelAliasSet
    | ModelShareSet
    | ModelLimitsSet
    | ModelAdapterSet
)
