"""Decides which destination gets a fact, and what the fact is about.

Pure. A destination sees no more than its tenant may read in the log. Tests:
tests/unit/test_notify_rules.py.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from libs.common import facts as f
from libs.common.facts import KINDS, AnyFact, Unknown
from libs.common.model import JobId
from libs.common.state.cluster import Cluster, Job
from libs.common.state.former_models import FormerModel
from libs.common.state.notifications import Destination
from services.api_gateway.access import roles
from services.api_gateway.access.roles import Principal
from services.api_gateway.views.fact_stream import OF_ALL
from services.api_gateway.views.model_owner import model_named, owned_model
from services.api_gateway.views.others import seen_by

# Kinds that no notification may choose: they are about keys, or about requests to the gateway.
NEVER: Final = ("access.", "key.", "secret.", "notification.", "state.")
KINDS_DEFAULT: Final = ("job.closed",)
COMPLETED: Final = "completed"
ALL_TENANTS: Final = "*"


class About(msgspec.Struct, frozen=True):
    """The things that a fact is about; empty for those that it is not about."""

    tenant: str = ""
    user: str = ""
    job_id: str = ""
    job_name: str = ""
    model: str = ""
    nodes: tuple[str, ...] = ()


class Origin(msgspec.Struct, frozen=True):
    """The owner and the name of a job."""

    tenant: str
    user: str = ""
    job_name: str = ""
    model: str = ""
    nodes: tuple[str, ...] = ()


def choosable() -> tuple[str, ...]:
    """Return the kinds of facts that notifications may choose, sorted."""
    return tuple(sorted(kind for kind in KINDS if not kind.startswith(NEVER)))


def about(
    cluster: Cluster, fact: AnyFact | Unknown, seq: int, origin: Origin | None = None
) -> About:
    """Return what the fact of commit `seq` is about.

    `origin` is that of a job that the state has forgotten.
    """
    job_id = str(getattr(fact, "job_id", ""))
    job = cluster.jobs.get(JobId(job_id))
    begun = _origin(job) if job is not None else origin
    model = _model_of(fact, begun)
    owner = begun or owned_model(cluster, fact, seq, model)
    tenant = str(owner.tenant) if owner is not None else ""
    user = "" if owner is None or isinstance(owner, FormerModel) else owner.user
    return About(
        tenant=str(getattr(fact, "tenant", "")) or tenant,
        user=user or str(getattr(fact, "user", "")),
        job_id=job_id,
        job_name=begun.job_name if begun is not None else "",
        model=model,
        nodes=_nodes_of(fact, begun),
    )


def forgotten(cluster: Cluster, fact: AnyFact | Unknown) -> str:
    """Return the job whose tenant neither the fact nor the state tells; empty if there is none."""
    job_id = str(getattr(fact, "job_id", ""))
    tenant = str(getattr(fact, "tenant", ""))
    return "" if tenant or JobId(job_id) in cluster.jobs else job_id


def origins(commit_facts: Iterable[AnyFact | Unknown]) -> dict[str, Origin]:
    """Return the jobs that these facts begin, except elements of arrays."""
    found = {}
    for fact in commit_facts:
        if isinstance(fact, f.JobSubmitted):
            found[str(fact.job_id)] = Origin(fact.tenant, fact.user, fact.spec.name)
        elif isinstance(fact, f.ReplicasScaled):
            for each in fact.add:
                begun = Origin(fact.tenant, fact.user, each.spec.name, fact.model)
                found[str(each.job_id)] = begun
    return found


def _origin(job: Job) -> Origin:
    is_replica = job.spec.serve is not None
    return Origin(
        tenant=job.tenant,
        user=job.user,
        job_name=job.spec.name,
        model=str(job.job_id).rpartition("-")[0] if is_replica else "",
        nodes=tuple(str(node) for node in job.members),
    )


def wants(destination: Destination, fact: AnyFact | Unknown, subject: About) -> bool:
    """Return whether the fact goes to the destination."""
    kind = f.kind_of(fact)
    if kind.startswith(NEVER) or not kind.startswith(destination.kinds):
        return False
    if not _may_read(destination, fact, subject):
        return False
    if destination.own and (subject.tenant, subject.user) != (destination.tenant, destination.user):
        return False
    if destination.models and subject.model not in destination.models:
        return False
    if destination.nodes and not any(node in destination.nodes for node in subject.nodes):
        return False
    ended_well = isinstance(fact, f.JobClosed) and fact.outcome == COMPLETED
    return not (destination.failures and ended_well)


def shown_to(
    destination: Destination, cluster: Cluster, fact: AnyFact | Unknown
) -> AnyFact | Unknown:
    """Return the fact as the destination may read it: as `/v1/events` shows it to its owner.

    Only operators set `tenants`, so a destination that has them reads as an operator does.
    """
    role = roles.OPERATOR if destination.tenants else roles.MEMBER
    owner = Principal(key_id="", tenant=destination.tenant, user=destination.user, role=role)
    return seen_by(owner, cluster, fact)


def _may_read(destination: Destination, fact: AnyFact | Unknown, subject: About) -> bool:
    """Return whether the fact is of a tenant that the destination has, or of no tenant at all."""
    if destination.tenants:
        return ALL_TENANTS in destination.tenants or subject.tenant in destination.tenants
    return subject.tenant == destination.tenant or (not subject.tenant and isinstance(fact, OF_ALL))


def _model_of(fact: AnyFact | Unknown, begun: Origin | None) -> str:
    """Return the model that the fact is about: named, or the one of a replica."""
    return model_named(fact) or (begun.model if begun is not None else "")


def _nodes_of(fact: AnyFact | Unknown, begun: Origin | None) -> tuple[str, ...]:
    if named := str(getattr(fact, "node_id", "")):
        return (named,)
    return begun.nodes if begun is not None else ()
