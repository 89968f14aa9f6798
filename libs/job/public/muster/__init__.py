"""The package that users' programs import from Muster: `muster.memory`, `muster.transport`, and the
client of a cluster: `muster.Client`, `muster.AsyncClient`, `muster.job`, `muster.errors`.

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
    from libs.client.synchronous.client import Client

__all__ = ["AsyncClient", "Client", "errors", "job"]

# Name -> its module, and "" for a module itself.
_LAZY: Final = {
    "AsyncClient": ("libs.client.asynchronous.client", "AsyncClient"),
    "Client": ("libs.client.synchronous.client", "Client"),
    "errors": ("muster.errors", ""),
    "job": ("libs.client.function.decorator", "job"),
}


def __getattr__(name: str) -> object:
    """Return a name of the client. Raises ImportError with the remedy if a package is missing."""
    if name not in _LAZY:
        raise AttributeError(f"module 'muster' has no attribute {name!r}")
    module, attribute = _LAZY[name]
    try:
        found = import_module(module)
    except ModuleNotFoundError as error:
        if error.name and error.name.partition(".")[0] in ("httpx2", "msgspec"):
            raise ImportError(
                f"muster.{name} needs the package {error.name}: pip install 'muster-gpu[client]'"
            ) from error
        raise
    value = getattr(found, attribute) if attribute else found
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
