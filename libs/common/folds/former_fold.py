"""Remove undeployed models from the state, and keep what a later deployment of the name gets.

Pure and total, called by `model_fold` only, for facts of gateways. A model leaves at a deployment
of any model, FORMER_STAY_NS after its undeployment and the end of its last replica. So no decision
about it that the scheduler has folded ahead of the log is left, and the facts of both commute. The
times are those of gateways, whose clocks must not differ by a day.
"""

from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.life import kept_life
from libs.common.state.cluster import Cluster, Model
from libs.common.state.former_models import FORMER_KEPT, FORMER_STAY_NS, FormerModel
from libs.common.state.kept import kept_key


def is_over(cluster: Cluster, model: Model, now_ns: int, stay_ns: int = FORMER_STAY_NS) -> bool:
    """Return whether for `stay_ns` nothing has needed the model any more but its numbers.

    The model stays as long as nodes keep data of it.
    """
    return (
        not model.deployed
        and not model.jobs
        and now_ns - max(model.undeployed_ns, model.last_ended_ns) >= stay_ns
        and not any(kept_key(model.name, tier) in cluster.kept for tier in kept_life.TIERS)
    )


def forget(cluster: Cluster, now_ns: int) -> None:
    """Replace the models that are over with their records, and drop the oldest records."""
    for model in [each for each in cluster.models.values() if is_over(cluster, each, now_ns)]:
        del cluster.models[model.name]
        cluster.former_models[model.name] = FormerModel(
            tenant=model.tenant,
            owner_seq=model.owner_seq,
            generation=model.generation,
            next_ordinal=model.free_ordinal,
        )
    for name in list(cluster.former_models)[:-FORMER_KEPT]:
        dropped = cluster.former_models.pop(name)
        cluster.ordinal_floor = max(cluster.ordinal_floor, dropped.next_ordinal)


def first_deployment(cluster: Cluster, fact: f.ModelDeployed, stamp: Stamp) -> Model:
    """Return the model of a name that the state does not have, or has only the record of."""
    model = Model(
        name=fact.name,
        tenant=fact.tenant,
        user=fact.user,
        spec=fact.spec,
        seq=stamp.seq,
        replicas=fact.spec.replicas,
        deployed_ns=stamp.at_ns,
        served_seq=stamp.seq,
        owner_seq=stamp.seq,
        request=fact.request,
        first_ordinal=cluster.ordinal_floor,
    )
    former = cluster.former_models.pop(fact.name, None)
    if former is not None:
        model.generation, model.next_ordinal = former.generation + 1, former.next_ordinal
        model.first_ordinal = 0
        if former.tenant == fact.tenant:
            model.owner_seq = former.owner_seq
    return model
