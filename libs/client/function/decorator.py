"""`@muster.job`: a function that runs as a job when it is called.

Tests: tests/integration/test_client_functions.py.
"""

import functools
import operator
import os
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, ParamSpec, TypeVar, overload

from libs.client.synchronous.client import Client
from libs.client.synchronous.functions import Future

P = ParamSpec("P")
T = TypeVar("T")


class RemoteFunction(Generic[P, T]):
    """A function whose calls run as jobs. `local` calls it here."""

    def __init__(
        self, function: Callable[P, T], client: Client | None, fields: dict[str, Any]
    ) -> None:
        self.local = function
        self.fields = fields
        self._client = client
        functools.update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a job that calls the function, and return the future of its result."""
        client = self._client or default_client()
        return client.functions.call(self.local, args, kwargs, **self.fields)

    def map(self, items: Iterable[Any], at_once: int | None = None) -> list[Future[T]]:
        """Call the function once for each item, as one array, at most `at_once` at a time."""
        client = self._client or default_client()
        return client.functions.map(self.local, items, at_once=at_once, **self.fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """On the node the name means the function itself, without the client."""
        # Only what every Python has: the node may not have this module.
        return operator.itemgetter(0), ((self.local,),)


@overload
def job(function: Callable[P, T], /) -> RemoteFunction[P, T]: ...


@overload
def job(
    *,
    client: Client | None = None,
    **fields: Any,  # noqa: ANN401  the fields of a job
) -> Callable[[Callable[P, T]], RemoteFunction[P, T]]: ...


def job(
    function: Callable[P, T] | None = None,
    /,
    *,
    client: Client | None = None,
    **fields: Any,
) -> RemoteFunction[P, T] | Callable[[Callable[P, T]], RemoteFunction[P, T]]:
    """Let calls of the function run as jobs: `@muster.job(gpus=2, image="...")`.

    `fields` are those of `Client.jobs.submit`, and `python` and `upload` of
    `Client.functions.call`. Without a `client` the one of the profile is used.
    """
    if function is not None:
        return RemoteFunction(function, client, fields)
    return lambda found: RemoteFunction(found, client, fields)


_lock = threading.Lock()
_default: tuple[int, Client] | None = None


def default_client() -> Client:
    """Return the client of the profile, made once per process."""
    global _default
    with _lock:
        if _default is None or _default[0] != os.getpid():
            _default = (os.getpid(), Client())
        return _default[1]
