"""The package that users' programs import from Muster: `muster.memory`, `muster.transport`, and the
client of a cluster: `muster.Client`, `muster.AsyncClient`, `muster.ClusterClient` (over gRPC),
`muster.job`, `muster.errors`.

The names are re-exported from `libs.job` and `libs.client`, which need no other part of Muster's
services. Those of the client are imported when they are used first, so that `import muster` in a
job stays light. For users: docs/howto/use-the-python-client.md.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from libs.client import errors
    from libs.client.asynchronous.client import AsyncClient
    from libs.client.function.decorator import job
    from libs.client.rpc.client import ClusterClient
    from libs.client.synchronous.client import Client

__all__ = ["AsyncClient", "Client", "ClusterClient", "errors", "job"]

# Name -> its module, and "" for a module itself.
_LAZY: Final = {
    "AsyncClient": ("libs.client.asynchronous.client", "AsyncClient"),
    "Client": ("libs.client.synchronous.client", "Client"),
    "ClusterClient": ("libs.client.rpc.client", "ClusterClient"),
    "errors": ("muster.errors", ""),
    "job": ("libs.client.function.decorator", "job"),
}

# Package that may be missing -> the extra that brings it.
_EXTRAS: Final = {"httpx2": "client", "msgspec": "client", "grpc": "grpc", "google": "grpc"}


def __getattr__(name: str) -> object:
    """Return a name of the client. Raises ImportError with the remedy if a package is missing."""
    if name not in _LAZY:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        extra = _EXTRAS.get((error.name or "").partition(".")[0])
        if extra is not None:
            raise ImportError(
                f"muster.{name} needs the package {error.name}: pip install 'muster-gpu[{extra}]'"
            ) from error
        raise
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
