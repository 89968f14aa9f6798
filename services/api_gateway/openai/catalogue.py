"""The models of the cluster and the addresses of their replicas, read from the fold at every
request.

`Deployed` is the cluster's catalogue. Its twin for the benchmark and for tests is `Listed`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from libs.common.adapters import AdapterRules
from libs.common.batching import Batching
from libs.common.life import kept_life
from libs.common.state import model_view
from libs.common.state.cluster import Cluster, Endpoint, Model
from libs.common.state.kept import kept_key
from services.api_gateway.access.roles import Principal, sees, sees_all
from services.api_gateway.openai.names import OF, Hidden, Names


class Served(NamedTuple):
    """A deployed model as its users see it, or one of its adapters."""

    name: str
    tenant: str
    created_s: int
    adapter: str = ""


class AdapterServed(NamedTuple):
    """An adapter for a replica to load.

    `is_replaced`: a replica may have another one under its name.
    """

    path: str
    seq: int
    rules: AdapterRules
    is_replaced: bool


class Catalogue(Protocol):
    """The models of the cluster."""

    def get(self, name: str) -> Served | None: ...

    def find(self, principal: Principal, name: str) -> Served | None:
        """Return the model that a name stands for; None if the principal may use none of it."""
        ...

    def hidden(self, principal: Principal, name: str) -> Hidden | None:
        """Return the model that a name of the tenant's undeployed models hides; None if none."""
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

    def continues(self, name: str) -> bool:
        """Return whether a broken stream of the model goes on at another replica."""
        ...

    def adapter(self, name: str, adapter: str) -> AdapterServed | None:
        """Return an adapter of the model; None if it has no such one."""
        ...

    def adapter_rules(self, name: str) -> AdapterRules | None:
        """Return the rules for the model's adapters; None if it takes none."""
        ...

    def adapter_versions(self, name: str) -> Mapping[str, int]:
        """Return the sequence of each of the model's adapters."""
        ...

    def why_not(self, name: str) -> str:
        """Return what the replicas of a model without a ready one are doing."""
        ...


class Deployed:
    """The models of the fold; `cluster` returns the present one, `now_ns` the time of the clock."""

    def __init__(self, cluster: Callable[[], Cluster], now_ns: Callable[[], int]) -> None:
        self.cluster = cluster
        self.now_ns = now_ns
        self._indexed: tuple[Cluster, int] | None = None
        self._names = Names(Cluster(), 0)
        # The replicas of models, as of so many facts of this cluster.
        self._read: tuple[Cluster, int] = (Cluster(), -1)
        self._ready: dict[str, Sequence[Endpoint]] = {}

    def get(self, name: str) -> Served | None:
        model = self.cluster().models.get(name)
        return _served(model) if model is not None and model.deployed else None

    def find(self, principal: Principal, name: str) -> Served | None:
        found = self._table(principal).get(name)
        return self._found(found) if found is not None else None

    def hidden(self, principal: Principal, name: str) -> Hidden | None:
        self._index()
        return self._names.hidden(principal.tenant, name)

    def names(self, principal: Principal) -> Iterable[tuple[str, Served]]:
        table = self._table(principal)
        return [
            (name, self._found(found))
            for name, found in table.items()
            # An adapter that has its short name is listed with that alone.
            if name != found or OF not in found or table.get(found.partition(OF)[2]) != found
        ]

    def _found(self, name: str) -> Served:
        """Return the model or the adapter that an index has under this name."""
        model = self.cluster().models.get(name)
        if model is not None:
            return _served(model)
        name, _, adapter = name.partition(OF)
        model = self.cluster().models[name]
        added_s = model.adapters[adapter].at_ns // 1_000_000_000
        return Served(model.name, model.tenant, added_s, adapter)

    def _table(self, principal: Principal) -> dict[str, str]:
        self._index()
        return self._names.table(principal.tenant, sees_all(principal))

    def _index(self) -> None:
        """Make the index again if names changed, or if one hides a model no longer."""
        cluster, before, ends_ns = self.cluster(), self._indexed, self._names.ends_ns
        is_old = before is None or before[0] is not cluster or before[1] != cluster.names_changes
        if is_old or (ends_ns is not None and ends_ns <= self.now_ns()):
            self._indexed = (cluster, cluster.names_changes)
            self._names = Names(cluster, self.now_ns())

    def expects(self, name: str, endpoint: Endpoint) -> str:
        job = self.cluster().jobs.get(endpoint.job_id)
        serve = job.spec.serve if job is not None else None
        return serve.served_name or name if serve is not None else name

    def ready(self, name: str) -> Sequence[Endpoint]:
        cluster, read = self.cluster(), self._read
        if read[0] is not cluster or read[1] != cluster.facts:
            self._read = (cluster, cluster.facts)
            self._ready = {}
        found = self._ready.get(name)
        if found is None:
            found = self._ready[name] = model_view.routable(cluster, name)
        return found

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

    def continues(self, name: str) -> bool:
        model = self.cluster().models.get(name)
        return model is not None and model.spec.continues_streams

    def adapter(self, name: str, adapter: str) -> AdapterServed | None:
        model, rules = self.cluster().models.get(name), self.adapter_rules(name)
        found = model.adapters.get(adapter) if model is not None else None
        if model is None or found is None or rules is None:
            return None
        return AdapterServed(found.path, found.seq, rules, model.adapters_dropped)

    def adapter_rules(self, name: str) -> AdapterRules | None:
        model = self.cluster().models.get(name)
        return model.spec.adapters if model is not None else None

    def adapter_versions(self, name: str) -> Mapping[str, int]:
        model = self.cluster().models.get(name)
        adapters = model.adapters if model is not None else {}
        return {adapter: found.seq for adapter, found in adapters.items()}

    def why_not(self, name: str) -> str:
        model = self.cluster().models.get(name)
        if model is None or not model.deployed:
            return "it was undeployed"
        if not model.wanted:
            return "it is scaled to 0"
        counted = model_view.counts(self.cluster(), model, self.now_ns())
        text = counted or f"0 of {model.wanted} run"
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
        self.continued: set[str] = set()

    def get(self, name: str) -> Served | None:
        found = self.models.get(name)
        return found[0] if found is not None else None

    def find(self, principal: Principal, name: str) -> Served | None:
        found = self.get(name)
        return found if found is not None and sees(principal, found.tenant) else None

    def hidden(self, principal: Principal, name: str) -> Hidden | None:
        return None

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

    def continues(self, name: str) -> bool:
        return name in self.continued

    def adapter(self, name: str, adapter: str) -> AdapterServed | None:
        return None

    def adapter_rules(self, name: str) -> AdapterRules | None:
        return None

    def adapter_versions(self, name: str) -> Mapping[str, int]:
        return {}

    def why_not(self, name: str) -> str:
        return self.models[name][2] if name in self.models else "it was undeployed"
