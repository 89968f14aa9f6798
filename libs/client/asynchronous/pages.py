"""Lists that come in pages, as iterators."""

from collections.abc import AsyncIterator, Mapping
from typing import TypeVar

from libs.client import calls
from libs.client.asynchronous.connection import AsyncConnection

T = TypeVar("T")


async def pages(
    connection: AsyncConnection,
    path: str,
    name: str,
    kind: type[T],
    query: Mapping[str, object] | None = None,
) -> AsyncIterator[T]:
    """Yield the rows of the list `name`, page after page."""
    after = None
    while True:
        call = calls.reading(path, {**(query or {}), "after": after})
        rows, after = calls.member(await connection.send(call), name, tuple[kind, ...], call.what)  # type: ignore[valid-type]
        for row in rows:
            yield row
        if after is None:
            return
