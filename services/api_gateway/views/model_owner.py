"""The model that a fact is about, if it was its owner's when the fact was recorded.

Pure. A name can be taken over by another tenant. Tests: tests/attack/test_names_of_others.py,
tests/unit/test_notify_rules.py.
"""

from typing import Final

from libs.common import facts as f
from libs.common.facts import AnyFact, Unknown
from libs.common.state.cluster import Cluster, Model
from libs.common.state.former_models import FormerModel

# Facts that follow a request to keep a model.
OF_KEPT: Final = (f.KeptPlaced, f.KeptGranted, f.KeptEvicted, f.KeptObserved)


def model_named(fact: AnyFact | Unknown) -> str:
    """Return the name of the model that the fact is about; empty if it names none."""
    if named := str(getattr(fact, "model", "")):
        return named
    is_of_model = f.kind_of(fact).startswith(("model.", "replicas."))
    return str(getattr(fact, "name", "")) if is_of_model else ""


def owned_model(
    cluster: Cluster, fact: AnyFact | Unknown, seq: int, name: str
) -> Model | FormerModel | None:
    """Return the model `name` as its owner had it at commit `seq`, in which the fact is; None if
    the name is unknown or was another tenant's.

    A fact from before the tenant got the name is about another tenant's model. So is a later one
    that follows a request from before.
    """
    model = cluster.models.get(name) or cluster.former_models.get(name)
    followed = fact.request if isinstance(fact, OF_KEPT) else seq
    return model if model is not None and min(seq, followed) >= model.owner_seq else None
