"""The models of the cluster and the addresses of their replicas, read from the fold at every
request.

`Deployed` is the cluster's catalogue. Its twin for the benchmark and for tests is `Listed`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from libs.common.batching import Batching
from libs.common.life import kept_life
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Endpoint, Model
from libs.common.state.kept import kept_key
from services.api_gateway.access.roles import Principal, sees, sees_all
from services.api_gateway.openai.names import Names


class Served(NamedTuple):
    """A deployed model as its users see it."""

    name: str
    tenant: str
    created_s: int


class Catalogue(Protocol):
    """The models of the cluster."""

    def get(self, name: str) -> Served | None: ...

    def find(self, principal: Principal, name: str) -> Served | None:
        """Return the model that a name stands for; None if the principal may use none of it."""
        ...

    def names(self, principal: Principal) -> Iterable[tuple[str, Served]]:
        """Return the names that the principal may use, with their models."""
        ...

    def expects(self, name: str, endpoint: Endpoint) -> str:
        """Return the name under which the replica's server knows the model."""
        ...

    def ready(self, name: str) -> Sequence[Endpoint]:
        """Return the replicas that requests may go to."""
        ...

    def has_standby(self, name: str) -> bool:
        """Return whether a standby may take over from a replica that died."""
        ...

    def scales(self, name: str) -> bool:
        """Return whether the scheduler changes the model's number of replicas by its requests."""
        ...

    def batching(self, name: str) -> Batching | None:
        """Return the bounds of the model's batches; None if its requests are not joined."""
        ...

    def why_not(self, name: str) -> str:
        """Return what the replicas of a model without a ready one are doing."""
        ...


class Deployed:
    """The models of the fold; `cluster` returns the present one."""

    def __init__(self, cluster: Callable[[], Cluster]) -> None:
        self.cluster = cluster
        self._indexed: tuple[Cluster, int] | None = None
        self._names = Names(Cluster())

    def get(self, name: str) -> Served | None:
        model = self.cluster().models.get(name)
        return _served(model) if model is not None and model.deployed else None

    def find(self, principal: Principal, name: str) -> Served | None:
        found = self._table(principal).get(name)
        return _served(self.cluster().models[found]) if found is not None else None

    def names(self, principal: Principal) -> Iterable[tuple[str, Served]]:
        models = self.cluster().models
        return [(name, _served(models[found])) for name, found in self._table(principal).items()]

    def _table(self, principal: Principal) -> dict[str, str]:
        """Return the principal's names, from an index that is made again when names changed."""
        cluster = self.cluster()
        before = self._indexed
        if before is None or before[0] is not cluster or before[1] != cluster.names_changes:
            self._indexed, self._names = (cluster, cluster.names_changes), Names(cluster)
        return self._names.table(principal.tenant, sees_all(principal))

    def expects(self, name: str, endpoint: Endpoint) -> str:
        job = self.cluster().jobs.get(endpoint.job_id)
        serve = job.spec.serve if job is not None else None
        return serve.served_name or name if serve is not None else name

    def ready(self, name: str) -> Sequence[Endpoint]:
        return model_view.routable(self.cluster(), name)

    def has_standby(self, name: str) -> bool:
        kept = self.cluster().kept.get(kept_key(name, kept_life.STANDBY))
        return kept is not None and any(
            entry.state in kept_life.HOLDS_BYTES for entry in kept.entries.values()
        )

    def scales(self, name: str) -> bool:
        model = self.cluster().models.get(name)
        return model is not None and model.deployed and model.spec.scaling is not None

    def batching(self, name: str) -> Batching | None:
        model = self.cluster().models.get(name)
        return model.spec.batching if model is not None else None

    def why_not(self, name: str) -> str:
        model = self.cluster().models.get(name)
        if model is None or not model.deployed:
            return "it was undeployed"
        if not model.wanted:
            return "it is scaled to 0"
        text = model_view.counts(self.cluster(), model) or f"0 of {model.wanted} run"
        looping = model_view.state_of(self.cluster(), model) == model_view.CRASH_LOOPING
        return (
            f"{text}; they crash repeatedly: `muster models {name}` says how" if looping else text
        )


def _served(model: Model) -> Served:
    return Served(model.name, model.tenant, model.deployed_ns // 1_000_000_000)


class Listed:
    """Models with given replicas and a given reason for having none."""

    def __init__(self, *models: tuple[Served, Sequence[Endpoint], str]) -> None:
        self.models = {served.name: (served, ready, why) for served, ready, why in models}
        self.batches: dict[str, Batching] = {}

    def get(self, name: str) -> Served | None:
        found = self.models.get(name)
        return found[0] if found is not None else None

    def find(self, principal: Principal, name: str) -> Served | None:
        found = self.get(name)
        return found if found is not None and sees(principal, found.tenant) else None

    def names(self, principal: Principal) -> Iterable[tuple[str, Served]]:
        return [(name, each) for name in self.models if (each := self.find(principal, name))]

    def expects(self, name: str, endpoint: Endpoint) -> str:
        return name

    def ready(self, name: str) -> Sequence[Endpoint]:
        return self.models[name][1] if name in self.models else ()

    def has_standby(self, name: str) -> bool:
        return False

    def scales(self, name: str) -> bool:
        return False

    def batching(self, name: str) -> Batching | None:
        return self.batches.get(name)

    def why_not(self, name: str) -> str:
        return self.models[name][2] if name in self.models else "it was undeployed"
