"""LoRA adapters as the API shows them. Pure; the field names are the API's contract."""

import msgspec

from libs.common.adapters import Adapter
from libs.common.state.cluster import Model
from services.api_gateway.times import rfc3339


class AdapterShown(msgspec.Struct):
    """An adapter of a model.

    `path` is its folder as the server of each replica sees it. `loaded` are the replicas at which
    the gateway that answers has loaded it.
    """

    name: str
    model: str
    tenant: str
    user: str
    path: str
    added_at: str | None
    loaded: list[str]


class AdapterList(msgspec.Struct):
    adapters: list[AdapterShown]
    next: str | None
    seq: int


def adapter_shown(model: Model, name: str, adapter: Adapter, loaded: list[str]) -> AdapterShown:
    return AdapterShown(
        name=name,
        model=model.name,
        tenant=model.tenant,
        user=adapter.user,
        path=adapter.path,
        added_at=rfc3339(adapter.at_ns),
        loaded=loaded,
    )
