"""Which models there are, and where each can be reached: read from the fold at every request, never asked of anyone.

The test's and the benchmark's twin is `Listed`.
"""

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class Endpoint(NamedTuple):
    """A ready replica: one attempt of its job, on its node's address."""

    job_id: str
    attempt: int
    host: str
    port: int


class Served(NamedTuple):
    """A model as requests see it. `asked` replicas are wanted, `ready` can take requests, `note` says what is wrong, if anything."""

    name: str
    tenant: str
    created_s: int
    asked: int
    ready: tuple[Endpoint, ...]
    note: str = ""


class Catalogue(Protocol):
    """The models of the cluster."""

    def get(self, name: str) -> Served | None: ...

    def all(self) -> Iterable[Served]: ...


class Listed:
    """Models by name, as they were put there."""

    def __init__(self, *models: Served) -> None:
        self.models = {model.name: model for model in models}

    def get(self, name: str) -> Served | None:
        return self.models.get(name)

    def all(self) -> Iterable[Served]:
        return list(self.models.values())
