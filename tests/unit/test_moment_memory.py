"""The memory of past states: full collections wait for the folds, and nothing is freed while it is
read.
"""

import asyncio
import gc
import weakref

from libs.common.transport.bus_memory import MemoryBus
from libs.common.transport.log_memory import MemoryLog
from services.api_gateway.moments import memory
from services.api_gateway.moments.memory import Collector, freed, pieces_of, unread
from services.api_gateway.moments.moment import Moment
from services.api_gateway.views.entries import Entries
from services.api_gateway.views.history import History
from services.api_gateway.views.index import JobIndex
from services.api_gateway.views.job_lookup import JobLookup
from tests.unit.test_snapshot import history


def moment() -> Moment:
    cluster, entries = history(1).cluster, Entries(MemoryLog(), MemoryBus())
    index = JobIndex(cluster)
    lookup = JobLookup(cluster, index, History(), entries, entries.bus)
    return Moment(cluster, index=index, lookup=lookup, now_ns=lambda: 0)


def test_no_full_collection_happens_until_the_last_fold_has_ended() -> None:
    before, collector = gc.get_threshold(), Collector()
    try:
        with collector.deferred():
            with collector.deferred():
                assert gc.get_threshold() == (*before[:2], memory.NEVER)
            assert gc.get_threshold() == (*before[:2], memory.NEVER)
        assert gc.get_threshold() == before
    finally:
        gc.unfreeze()


async def test_a_dropped_state_is_freed_in_pieces_when_no_request_reads_it() -> None:
    read = moment()
    job = weakref.ref(read)
    pieces = pieces_of(read)
    assert len(pieces) > len(read.cluster.jobs) >= memory.FREED_AT_ONCE // 10
    waiting = asyncio.create_task(unread(job))
    await asyncio.sleep(memory.LOOK_S)
    assert not waiting.done()
    del read
    await waiting
    left = list(freed(pieces))
    assert left == sorted(left, reverse=True) and left[-1] == 0
