"""Find the model that a name stands for, for each tenant.

Pure. A tenant's own models come first: their names, then their aliases, then the names that their
servers know, then their adapters. Then come models that other tenants share with it; of two with
the same name the one that had the name and was shared first. So a tenant that shares a model takes
over no name of another tenant's own models, and by a new alias or adapter none of a model that was
shared earlier. The names of a tenant's undeployed models stay its own for an hour against models
that are shared with everyone: while it replaces a model, its prompts go to no stranger. Operators
also reach every other model by its name. An adapter is named alone, or as MODEL:ADAPTER.
Tests: tests/unit/test_openai_names.py and docs/decisions/0054-aliases-are-names-within-a-tenant.md.
"""

from collections.abc import Iterator
from typing import Final, NamedTuple

from libs.common.state.cluster import Cluster, Model
from libs.common.state.former_models import FORMER_NS

# The guest that stands for all tenants.
EVERYONE: Final = "*"

# Between the name of a model and that of its adapter; no name of a deployment has it.
OF: Final = ":"

# The model of each name or, for an adapter's name, MODEL:ADAPTER.
Table = dict[str, str]


def is_guest(model: Model, tenant: str) -> bool:
    """Return whether the deployed model is shared with this tenant."""
    return model.deployed and (tenant in model.guests or EVERYONE in model.guests)


def names_of(model: Model) -> Iterator[str]:
    """Yield the names of a model: its own, its aliases in the order of their addition, and the one
    that its server knows.
    """
    yield model.name
    yield from sorted(model.aliases, key=lambda alias: (model.aliases[alias], alias))
    if model.spec.served_name:
        yield model.spec.served_name


def adapter_name(model: str, adapter: str) -> str:
    """Return the name of an adapter that no other adapter in the cluster has."""
    return model + OF + adapter


class Hidden(NamedTuple):
    """A model that everyone may use, and until when a former name of the tenant hides it."""

    model: str
    until_ns: int


class Names:
    """The names of all deployed models, as of one state of the cluster and a time.

    They are valid until `ends_ns`, when a name of an undeployed model stops to hide others.
    """

    def __init__(self, cluster: Cluster, now_ns: int) -> None:
        deployed = [model for model in cluster.models.values() if model.deployed]
        self.deployed: Table = {model.name: model.name for model in deployed}
        self.adapters = _adapters(deployed)
        self.own: dict[str, Table] = {}
        self._tables: dict[tuple[str, bool], Table] = {}
        self._add_own(deployed)
        self._shared = _shared(deployed)
        self._former = _former(cluster, now_ns)
        ends = [until_ns for names in self._former.values() for until_ns in names.values()]
        self.ends_ns = min(ends, default=None)

    def _add_own(self, deployed: list[Model]) -> None:
        for model in deployed:
            self.own.setdefault(model.tenant, {})[model.name] = model.name
        aliases = sorted(
            (seq, alias, model.tenant, model.name)
            for model in deployed
            for alias, seq in model.aliases.items()
        )
        for _, alias, tenant, name in aliases:
            self.own[tenant].setdefault(alias, name)
        for model in sorted(deployed, key=lambda model: (model.deployed_ns, model.seq)):
            if model.spec.served_name:
                self.own[model.tenant].setdefault(model.spec.served_name, model.name)
        for adapter in self.adapters:
            for name in (adapter.name, adapter.whole):
                self.own[adapter.tenant].setdefault(name, adapter.whole)

    def table(self, tenant: str, sees_all: bool) -> Table:
        """Return the names that a principal of this tenant may use, with their models."""
        found = self._tables.get((tenant, sees_all))
        if found is None:
            found = dict(self.own.get(tenant, {}))
            former = self._former.get(tenant, {})
            public = [s for s in self._shared.get(EVERYONE, ()) if s.name not in former]
            for share in sorted((*self._shared.get(tenant, ()), *public)):
                found.setdefault(share.name, share.model)
            for name in self.deployed if sees_all else ():
                found.setdefault(name, name)
            for adapter in self.adapters if sees_all else ():
                found.setdefault(adapter.whole, adapter.whole)
            self._tables[tenant, sees_all] = found
        return found

    def hidden(self, tenant: str, name: str) -> Hidden | None:
        """Return the model that the name would stand for without the tenant's undeployed ones."""
        until_ns = self._former.get(tenant, {}).get(name)
        shares = [each for each in self._shared.get(EVERYONE, ()) if each.name == name]
        return Hidden(min(shares).model, until_ns) if until_ns is not None and shares else None


def _former(cluster: Cluster, now_ns: int) -> dict[str, dict[str, int]]:
    """Return the names of each tenant's undeployed models that hide others, with the ends of that.

    Their aliases are not known.
    """
    found: dict[str, dict[str, int]] = {}
    for model in cluster.models.values():
        until_ns = model.undeployed_ns + FORMER_NS
        if not model.deployed and now_ns < until_ns:
            names = found.setdefault(model.tenant, {})
            names |= {name: max(until_ns, names.get(name, 0)) for name in names_of(model)}
    return found


class _Named(NamedTuple):
    """An adapter with its two names, `name` and `whole`."""

    seq: int
    whole: str
    name: str
    tenant: str


def _adapters(models: list[Model]) -> list[_Named]:
    """Return the adapters of models, the oldest first."""
    return sorted(
        _Named(adapter.seq, adapter_name(model.name, name), name, model.tenant)
        for model in models
        for name, adapter in model.adapters.items()
    )


class _Share(NamedTuple):
    """One name of a shared model. `seq` is since when a guest could use it.

    `model` may be an adapter of it.
    """

    seq: int
    model: str
    name: str


def _shared(deployed: list[Model]) -> dict[str, list[_Share]]:
    """Return the names that each guest may use."""
    found: dict[str, list[_Share]] = {}
    for model in deployed:
        since = {model.name: 0, **model.aliases}
        if model.spec.served_name:
            since.setdefault(model.spec.served_name, model.served_seq)
        named = [(seq, model.name, name) for name, seq in since.items()]
        for adapter in _adapters([model]):
            named += [(adapter.seq, adapter.whole, name) for name in (adapter.name, adapter.whole)]
        for guest, shared in model.guests.items():
            if guest != model.tenant:
                names = found.setdefault(guest, [])
                names += [_Share(max(shared, seq), whose, name) for seq, whose, name in named]
    return found
