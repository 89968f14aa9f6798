"""The rules by which the gateway gathers requests to a model into batches."""

import msgspec


class Batching(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of the batches of a model whose server does not batch by itself.

    A request to a replica has at most `items_max` inputs of several clients' requests. A request
    waits up to `wait_ms` for others.
    """

    items_max: int
    wait_ms: int = 5
