"""The cluster's state at any past sequence, folded from the log.

The fold runs on the loop's own thread, in slices of about one millisecond. On another thread it
would block every request for several milliseconds at a time. `http/events.py` allows one such fold
at a time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from typing import Any, Final

import msgspec

from libs.common import fold, reading
from libs.common.state.cluster import Cluster
from libs.common.transport import snapshot_store
from libs.common.transport.snapshot_store import SnapshotStore
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.jobs import job_shown
from services.api_gateway.views.models import model_shown
from services.api_gateway.views.nodes import gpu_shown, node_shown

SLICE_FACTS: Final = 200
LINES_SLICE: Final = 100

_encode = msgspec.json.Encoder().encode


async def fold_to(entries: Entries, store: SnapshotStore, at: int) -> Cluster:
    """Return the state after commit `at`, folded from the last snapshot before it.

    Raises Unavailable.
    """
    cluster = await snapshot_store.newest(store, at)
    turn = 0
    async with aclosing(entries.scan(cluster.seq, at)) as slices:
        async for piece in slices:
            for entry in piece:
                commit = reading.read(cluster.writers, entry.subject, entry.data)
                turn += len(fold.apply_entry(cluster, entry.seq, entry.subject, commit))
                if turn >= SLICE_FACTS:
                    turn = 0
                    await asyncio.sleep(0)
    return cluster


async def state_lines(cluster: Cluster) -> AsyncIterator[bytes]:
    """Yield one JSON object in pieces: the head, then jobs, models, nodes and devices as their own
    routes show them.
    """
    head = {
        "seq": cluster.seq,
        "epoch": cluster.epoch,
        "leader": cluster.leader,
        "cluster_id": cluster.cluster_id,
    }
    yield _encode(
        {
            **head,
            "timing": cluster.timing,
            "facts": cluster.facts,
            "ignored": cluster.ignored,
            "tenants": cluster.tenants,
        }
    )[:-1]
    parts: tuple[tuple[str, Iterable[Any]], ...] = (
        ("jobs", (job_shown(cluster, job) for job in cluster.jobs.values())),
        ("models", (model_shown(cluster, model) for model in cluster.models.values())),
        ("nodes", (node_shown(cluster, node) for node in cluster.nodes.values())),
        ("gpus", (gpu_shown(cluster, view) for view in cluster.gpus.values())),
    )
    for name, values in parts:
        yield f',"{name}":['.encode()
        async for piece in _joined(values):
            yield piece
        yield b"]"
    yield b"}\n"


async def _joined(values: Iterable[Any]) -> AsyncIterator[bytes]:
    waiting: list[bytes] = []
    begun = False
    for value in values:
        waiting.append(_encode(value))
        if len(waiting) >= LINES_SLICE:
            yield (b"," if begun else b"") + b",".join(waiting)
            waiting, begun = [], True
            await asyncio.sleep(0)
    if waiting:
        yield (b"," if begun else b"") + b",".join(waiting)
