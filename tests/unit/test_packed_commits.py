"""A commit too large in plain form is packed: what is read back, what is refused, and that a few
bytes never become gigabytes.
"""

import zlib
from collections.abc import Callable

import msgspec
import pytest

from libs.common import facts as f
from libs.common.errors import Corrupt, Refused, TooNew
from libs.common.facts import packing
from libs.common.model import JobId, NodeId
from libs.common.subjects import SCHEDULER
from services.scheduler.decide.oversize import TOO_LARGE, smaller
from tests.attack.test_large_commits import gang, preemptions
from tests.given import given, member, placed, registered, waiting

NODE = "facts.node.node-1"


def commit(*facts: f.AnyFact | f.Unknown, writer: str = SCHEDULER) -> f.Commit:
    return f.Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=writer,
        number=3,
        epoch=7,
        at_ns=1_700_000_000_000_000_000,
        seen=41,
        facts=facts,
    )


def handmade(
    packed: bytes, min_reader: int = f.PACKED, facts: object = (), writer: str = SCHEDULER
) -> bytes:
    return msgspec.msgpack.encode([1, min_reader, writer, 1, 0, 5, 0, facts, packed])


def test_a_packed_commit_reads_back_as_it_was() -> None:
    large = commit(gang(1_280, 8))
    with pytest.raises(Refused):
        f.encode(large)
    found = f.decode(f.encode_packed(large))
    assert (found.facts, found.number, found.epoch, found.seen) == (large.facts, 3, 7, 41)


@pytest.mark.parametrize("encode", [f.encode, f.encode_packed])
@pytest.mark.parametrize(("took_ms", "reason"), [(1 << 64, ""), (0, "\udcff")])
def test_values_that_no_reader_could_decode_are_refused(
    encode: Callable[[f.Commit], bytes], took_ms: int, reason: str
) -> None:
    fact = f.StandbyPromoted(JobId("j"), 1, NodeId("n"), 1, 1, took_ms=took_ms, reason=reason)
    with pytest.raises(Refused, match="the log cannot store a value of a fact"):
        encode(commit(fact))


def test_an_old_reader_is_stopped_by_a_packed_commit() -> None:
    assert (
        msgspec.msgpack.decode(f.encode_packed(commit(gang(2, 8))))[1] == f.PACKED == f.VERSION + 1
    )


def test_a_plain_commit_may_name_the_later_reader() -> None:
    fact = {"kind": "job.admitted", "job_id": "j"}
    assert f.decode(handmade(b"", facts=[fact])).facts == (f.JobAdmitted(job_id=JobId("j")),)


def test_an_unknown_fact_in_a_packed_commit_hides_no_other() -> None:
    facts = [{"kind": "job.dreamt"}, {"kind": "job.admitted", "job_id": "j"}]
    unknown, known = f.decode(handmade(packing.pack(msgspec.msgpack.encode(facts)))).facts
    assert isinstance(unknown, f.Unknown) and known == f.JobAdmitted(job_id=JobId("j"))


def test_a_packed_commit_for_a_later_reader_stops_this_one() -> None:
    with pytest.raises(TooNew):
        f.decode(handmade(b"", min_reader=f.READS + 1))


BOMB = zlib.compress(b"\0" * (packing.UNPACKED_BYTES_MAX + 1))


@pytest.mark.parametrize(
    "packed", [b"", b"nonsense", BOMB, packing.pack(b"\x91") + b"more", packing.pack(b"\x81")]
)
def test_damaged_or_endless_packed_facts_are_refused(packed: bytes) -> None:
    with pytest.raises(Corrupt, match="packed facts"):
        f.decode(handmade(packed))


def test_packed_facts_of_a_node_are_bounded_more_tightly() -> None:
    plain = msgspec.msgpack.encode([b"\0" * packing.NODE_UNPACKED_BYTES_MAX])
    assert len(f.decode(handmade(packing.pack(plain))).facts) == 1
    with pytest.raises(Corrupt):
        f.decode(handmade(packing.pack(plain), writer=NODE))


def test_a_node_packs_no_more_facts_than_a_plain_commit_may_hold() -> None:
    fact = {"kind": "job.admitted", "job_id": "j"}
    most = [fact] * packing.NODE_FACTS_MAX
    packed = packing.pack(msgspec.msgpack.encode(most))
    assert len(f.decode(handmade(packed, writer=NODE)).facts) == packing.NODE_FACTS_MAX
    more = packing.pack(msgspec.msgpack.encode([*most, fact]))
    assert len(f.decode(handmade(more)).facts) == packing.NODE_FACTS_MAX + 1
    with pytest.raises(Corrupt, match="are more than 2048"):
        f.decode(handmade(more, writer=NODE))


def test_facts_over_the_bound_are_refused_before_they_are_packed() -> None:
    endless = f.JobRejected(job_id=JobId("j"), reason="x" * packing.UNPACKED_BYTES_MAX)
    with pytest.raises(Refused, match="over the log's bound of 8388608"):
        f.encode_packed(commit(endless))
    assert not f.fits([endless], SCHEDULER)


def test_facts_that_do_not_shrink_enough_are_refused() -> None:
    with pytest.raises(Refused, match="a packed commit of"):
        f.encode_packed(commit(gang(1_024, 64)))
    assert not f.fits([gang(1_024, 64)], SCHEDULER)


def test_fits_agrees_with_the_encoder() -> None:
    groups = (
        [f.JobAdmitted(job_id=JobId("j"))],
        [gang(1_280, 8)],
        [gang(1_024, 16)],
        preemptions(10_000),
    )
    assert all(f.fits(group, SCHEDULER) for group in groups)
    assert all(len(f.encode_packed(commit(*group))) <= f.COMMIT_BYTES_MAX for group in groups)


def test_a_waiting_job_that_no_commit_can_place_is_rejected() -> None:
    state = given(registered("n"), waiting("j"))
    rejected = f.JobClosed(job_id=JobId("j"), attempt=1, outcome="rejected", reason=TOO_LARGE)
    assert smaller(state, (placed("j", member("n", 0)),)) == (rejected,)
    state.apply_own((rejected,), 0)
    assert state.cluster.jobs[JobId("j")].state == "rejected"


def test_a_running_job_that_no_commit_can_grow_goes_on() -> None:
    state = given(registered("n"), waiting("j"), placed("j", member("n", 0)))
    assert smaller(state, (f.DevicesReserved(job_id=JobId("j"), attempt=2),)) == ()


def test_a_hurt_gang_is_stopped_without_its_reservation() -> None:
    stop = f.JobStopOrdered(job_id=JobId("j"), attempt=1, reason="gang_hurt", signal=15, grace_ms=1)
    assert smaller(given(), (stop, f.DevicesReserved(job_id=JobId("j"), attempt=2))) == (stop,)


def test_other_facts_that_fit_into_no_commit_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="fit into no commit"):
        smaller(given(), (f.NodeLost(node_id=registered("n").node_id, incarnation=1),))
