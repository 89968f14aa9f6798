"""Access entries: bounded, batched, never in anyone's way, and counted where they could not be
kept.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from libs.common.errors import Corrupt
from libs.common.facts import FACT_BYTES_MAX, AccessRecorded, AnyFact, check_fact_size
from libs.common.messages import access_entry
from libs.common.process.clock import SystemClock
from services.api_gateway.access.records import (
    BATCH_BYTES,
    BUFFER_BYTES_MAX,
    STRANGERS_MAX,
    Recorder,
)
from services.api_gateway.access.roles import Principal

ADA = Principal("k1", "physics", "ada", "member")


class Log:
    """Takes commits; answers them at once unless it is `silent`."""

    def __init__(self) -> None:
        self.facts: list[AccessRecorded] = []
        self.silent = False
        self.full = False

    def put(self, facts: Sequence[AnyFact]) -> "asyncio.Future[int]":
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        if not self.silent:
            future.set_result(1)
        for fact in facts:
            assert isinstance(fact, AccessRecorded)
            check_fact_size(fact)
            self.facts.append(fact)
        return future


def recorder(log: Log) -> Recorder:
    return Recorder(SystemClock(), log.put, lambda: log.full)


def scope(**fields: Any) -> dict[str, Any]:
    return {
        "method": "GET",
        "path": "/v1/jobs/j1",
        "request_id": "r1",
        "client": ("10.0.0.1", 1),
        "path_params": {"ref": "j1"},
        **fields,
    }


async def test_an_entry_says_who_asked_for_what_and_whether_they_might() -> None:
    log = Log()
    access = recorder(log)
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    access.note(scope(path="/v1/x", path_params={}), None, "none", 401, "no key")
    await access.flush()
    allowed, denied = access_entry.unpack(log.facts[0].entries)
    assert (allowed.key_id, allowed.tenant, allowed.user, allowed.route, allowed.ids) == (
        "k1",
        "physics",
        "ada",
        "/v1/jobs/{ref}",
        ("j1",),
    )
    assert (allowed.status, allowed.denied, allowed.source, allowed.request_id) == (
        200,
        "",
        "10.0.0.1",
        "r1",
    )
    assert (denied.key_id, denied.ids, denied.status, denied.denied) == (
        "",
        ("/v1/x",),
        401,
        "no key",
    )
    assert (log.facts[0].count, log.facts[0].first_ns, log.facts[0].last_ns) == (
        2,
        allowed.at_ns,
        denied.at_ns,
    )


async def test_much_at_once_goes_out_in_batches_that_the_log_takes() -> None:
    log = Log()
    access = recorder(log)
    for number in range(2_000):
        access.note(
            scope(path_params={"ref": f"{number}".zfill(300)}), ADA, "/v1/jobs/{ref}", 200, ""
        )
    await access.flush()
    assert sum(fact.count for fact in log.facts) == 2_000 and len(log.facts) > 2
    entries = [entry for fact in log.facts for entry in access_entry.unpack(fact.entries)]
    assert [int(entry.ids[0]) for entry in entries] == [0] * 2_000  # cut to the first characters
    assert BATCH_BYTES < FACT_BYTES_MAX


async def test_a_full_log_is_left_alone_and_what_was_not_kept_is_counted() -> None:
    log = Log()
    access = recorder(log)
    log.full = True
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    await access.flush()
    assert log.facts == []
    log.full = False
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    await access.flush()
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    await access.flush()
    assert [(fact.count, fact.dropped) for fact in log.facts] == [(1, 1), (1, 0)]


async def test_a_log_that_does_not_answer_blocks_nobody_and_takes_no_memory_without_bound() -> None:
    log = Log()
    access = recorder(log)
    log.silent = True
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    flushing = asyncio.create_task(access.flush())
    await asyncio.sleep(0)
    size = len(access_entry.encode(access_entry.unpack(log.facts[0].entries)[0]))
    for _ in range(BUFFER_BYTES_MAX // size + 1_000):
        access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    assert access.bytes <= BUFFER_BYTES_MAX + size and access.dropped > 900
    flushing.cancel()


async def test_client_without_a_key_cannot_fill_the_log() -> None:
    log = Log()
    access = recorder(log)
    for _ in range(STRANGERS_MAX + 7):
        access.note(scope(), None, "none", 401, "no key")
    access.note(scope(), ADA, "/v1/jobs/{ref}", 200, "")
    await access.flush()
    access.note(scope(), None, "none", 401, "no key")
    await access.flush()
    assert [(fact.count, fact.dropped) for fact in log.facts] == [(STRANGERS_MAX + 1, 7), (1, 0)]


async def test_nothing_is_recorded_when_nothing_was_asked() -> None:
    log = Log()
    await recorder(log).flush()
    assert log.facts == []


@pytest.mark.parametrize("batch", [b"", b"no zlib", access_entry.pack([b"\xc0"])])
def test_bytes_that_are_no_batch_are_named(batch: bytes) -> None:
    with pytest.raises(Corrupt):
        access_entry.unpack(batch)
