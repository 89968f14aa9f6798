"""Readers of the log: all ignore a node's faulty commit alike, and a core writer's faulty commit
stops them.
"""

import msgspec
import pytest

from libs.common import bounds, fold, reading, subjects
from libs.common import facts as f
from libs.common.change import Stamp
from libs.common.errors import Corrupt, TooNew
from libs.common.facts import Commit, packing
from libs.common.facts.nesting import DEPTH_MAX, VALUES_MAX, array_length, too_deep
from libs.common.facts.packing import NODE_FACTS_MAX
from libs.common.model import JobId, NodeId, TenantId
from libs.common.state.cluster import Cluster, WriterMark
from libs.common.transport.log import Entry
from services.node_agent.incarnation import next_incarnation
from services.quota.state import State as QuotaState
from services.scheduler.state.state import State as SchedulerState
from tests.history import begun, node, registered, stamp_of, submitted

N1 = subjects.node("n1")
GATEWAY = subjects.gateway("a")
BEAT = f.JobStarted(job_id=JobId("j"), attempt=1, node_id=node("n1"))


def commit(subject: str = N1, number: int = 1, *facts: f.AnyFact, **fields: int) -> Commit:
    made = Commit(
        version=f.VERSION,
        min_reader=f.VERSION,
        writer=subject,
        number=number,
        epoch=0,
        at_ns=0,
        seen=0,
        facts=facts or (BEAT,),
    )
    return msgspec.structs.replace(made, **fields)


def raw(made: Commit) -> bytes:
    return msgspec.msgpack.encode(made)


def packed(plain: bytes, writer: str = N1) -> bytes:
    """An envelope with packed facts, which may be anything."""
    head = (f.VERSION, f.PACKED, writer, 1, 0, 0, 0, ())
    return msgspec.msgpack.encode((*head, packing.pack(plain)))


def nested(depth: int) -> bytes:
    """A valid envelope with an unknown fact that nests so deeply."""
    fact = b"\x82\xa4kind\xa4deep\xa1x" + b"\x91" * depth + b"\x90"
    return b"\x98\x01\x01" + msgspec.msgpack.encode(N1) + b"\x01\x00\x00\x00\x91" + fact


WRONG = {
    "no commit": b"hello",
    "no bytes": b"",
    "another writer": raw(commit(subjects.node("n2"))),
    "too new": raw(commit(min_reader=f.READS + 1)),
    "too deep": nested(5_000),
    "too large": raw(
        commit(N1, 1, msgspec.structs.replace(BEAT, isolation="x" * f.COMMIT_BYTES_MAX))
    ),
    "too many facts": raw(commit(N1, 1, *[BEAT] * (NODE_FACTS_MAX + 1))),
    "too many packed facts": packed(b"\xdd\x00\x0f\xff\xfc" + b"\x90" * 0xFFFFC),
    "packed facts that nest": packed(b"\x91" * 100),
    "packed facts of another writer": packed(
        b"\xdd\x00\x0f\xff\xfc" + b"\x90" * 0xFFFFC, "facts.scheduler"
    ),
    "too many values": b"\x98\x01\x01"
    + msgspec.msgpack.encode(N1)
    + b"\x01\x00\x00\x00\x91\xdd\x00\x06\x00\x00"
    + b"\x90" * 0x60000,
    "number 0": raw(commit(number=0)),
    "a number past all": raw(commit(number=f.NUMBER_MAX + 1)),
    "an epoch past all": raw(commit(epoch=1 << 63)),
    "a sequence below 0": raw(commit(seen=-1)),
    "a time below 0": raw(commit(at_ns=-1)),
    "a time past all": raw(commit(at_ns=1 << 63)),
    "a list of 4 billion": b"\x98\x01\x01"
    + msgspec.msgpack.encode(N1)
    + b"\x01\x00\x00\x00\xdd\xff\xff\xff\xff",
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_a_wrong_commit_of_a_node_is_ignored(data: bytes) -> None:
    assert reading.is_ignored(reading.read({}, N1, data))


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG.keys())
def test_ignored_commit_counts_and_distrusts_only_its_node(
    data: bytes,
) -> None:
    cluster = begun(nodes=2).cluster
    seq, ignored = cluster.seq, cluster.ignored
    changes = fold.apply_entry(cluster, seq + 1, N1, reading.read(cluster.writers, N1, data))
    assert (cluster.seq, cluster.ignored, changes[0].nodes) == (seq + 1, ignored + 1, ("n1",))
    n1, n2 = (cluster.nodes[node(name)] for name in ("n1", "n2"))
    assert (n1.usable, n1.takes_work, n1.ignored, n1.ignored_seq) == (True, False, 1, seq + 1)
    assert n1.distrusted == n1.ignored_reason != ""
    assert (n2.takes_work, n2.ignored) == (True, 0)


FORGED = {
    "a charge": f.UsageCharged(job_id=JobId("j"), attempt=1, tenant=TenantId("a"), share_ms=1),
    "another node's start": f.JobStarted(job_id=JobId("j"), attempt=1, node_id=node("n2")),
    "a charge with too long a list": f.UsageCharged(
        job_id=JobId("j"),
        attempt=1,
        tenant=TenantId("a"),
        share_ms=1,
        parts=(f.ChargePart("", 1),) * (bounds.COUNT_MAX + 1),
    ),
}


@pytest.mark.parametrize("fact", FORGED.values(), ids=FORGED.keys())
def test_a_fact_that_its_writer_may_not_record_is_taken_for_true_by_no_reader(
    fact: f.AnyFact,
) -> None:
    found = reading.read_alone(N1, raw(commit(N1, 1, BEAT, fact)))
    assert found.facts[0] == BEAT
    assert isinstance(found.facts[1], f.Unentitled)
    assert f.kind_of(fact) in found.facts[1].reason
    assert not reading.is_ignored(reading.read_alone(N1, raw(commit(N1, 1, fact))))


@pytest.mark.parametrize("fact", FORGED.values(), ids=FORGED.keys())
def test_a_fact_that_its_writer_may_not_record_changes_the_state_as_it_did_before(
    fact: f.AnyFact,
) -> None:
    """Earlier versions folded the fact itself."""
    before, now = begun(nodes=2).cluster, begun(nodes=2).cluster
    made = commit(N1, 2, fact)
    assert fold.apply_entry(before, before.seq + 1, N1, made) == fold.apply_entry(
        now, now.seq + 1, N1, reading.read(now.writers, N1, raw(made))
    )
    assert before == now
    too_long = isinstance(fact, f.UsageCharged) and bool(fact.parts)
    assert bool(now.nodes[node("n1")].distrusted) == too_long


def test_a_core_writer_s_fact_of_another_service_is_taken_for_true_by_no_reader() -> None:
    (found,) = reading.read_alone(GATEWAY, raw(commit(GATEWAY, 1, BEAT))).facts
    assert isinstance(found, f.Unentitled)
    assert not found.distrusts


def test_a_fact_of_a_later_version_stays_unknown_unless_its_kind_is_another_writer_s() -> None:
    def one(kind: str) -> f.AnyFact | f.Unknown:
        head = (f.VERSION, f.VERSION, N1, 1, 0, 0, 0)
        data = msgspec.msgpack.encode((*head, [{"kind": kind, "new": 1}]))
        return reading.read_alone(N1, data).facts[0]

    assert [type(one(kind)) for kind in ("of.tomorrow", "job.started", "usage.charged")] == [
        f.Unknown,
        f.Unknown,
        f.Unentitled,
    ]


@pytest.mark.attack
@pytest.mark.parametrize(
    "name", ["too many packed facts", "packed facts of another writer", "too many facts"]
)
def test_facts_of_a_hostile_commit_are_counted_before_any_is_decoded(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[bytes] = []
    monkeypatch.setattr(f, "_decode_fact", decoded.append)
    assert reading.is_ignored(reading.read({}, N1, WRONG[name]))
    assert decoded == []


def test_the_length_of_an_array_is_read_from_its_first_bytes() -> None:
    assert [
        array_length(data)
        for data in (b"", b"\x80", b"\x93", b"\xdc\x01\x00", b"\xdd\x00\x01\x00\x00")
    ] == [0, 0, 3, 256, 65_536]


def test_values_past_their_bound_are_too_deep() -> None:
    assert too_deep(b"\xdd\x00\x10\x00\x00" + b"\x90" * (VALUES_MAX + 1))
    assert not too_deep(b"\xdd\x00\x10\x00\x00" + b"\x90" * 1_000)


def test_a_commit_within_all_bounds_is_read() -> None:
    assert reading.read({}, N1, raw(commit())) == commit()


def test_faulty_commit_of_a_core_writer_stops_the_reader() -> None:
    for data in (b"hello", raw(commit(subjects.gateway("b")))):
        with pytest.raises(Corrupt):
            reading.read({}, GATEWAY, data)
    with pytest.raises(TooNew):
        reading.read({}, GATEWAY, raw(commit(GATEWAY, min_reader=f.READS + 1)))
    deep = nested(5_000).replace(msgspec.msgpack.encode(N1), msgspec.msgpack.encode(GATEWAY))
    with pytest.raises(Corrupt):
        f.decode(deep[:-1])


def test_gap_in_numbers_is_ignored_for_nodes_and_corrupt_for_core_writers() -> None:
    mark = WriterMark(1, 4, 0, 0)
    assert reading.is_ignored(reading.read({N1: mark}, N1, raw(commit(number=6))))
    assert not reading.is_ignored(reading.read({N1: mark}, N1, raw(commit(number=5))))
    gap = reading.read({GATEWAY: mark}, GATEWAY, raw(commit(GATEWAY, 6, submitted("j"))))
    with pytest.raises(Corrupt, match="goes from commit 4 to 6"):
        fold.check_place(Cluster(seq=1, writers={GATEWAY: mark}), 2, GATEWAY, gap)
    with pytest.raises(Corrupt, match="goes from commit 0 to 6"):
        fold.check_place(Cluster(seq=1), 2, GATEWAY, gap)


def test_after_an_ignored_commit_the_next_may_have_any_number() -> None:
    mark = WriterMark(1, 0, 0, 0, ignored=True)
    assert not reading.is_ignored(reading.read({N1: mark}, N1, raw(commit(number=77))))


def test_numbers_begin_again_after_the_last() -> None:
    mark = WriterMark(1, f.NUMBER_MAX, 0, 0)
    assert f.next_number(f.NUMBER_MAX) == 1
    assert reading.follows(mark, commit(number=1))


def test_a_registration_ends_the_distrust_and_the_count_stays() -> None:
    cluster = begun().cluster
    fold.apply_entry(cluster, cluster.seq + 1, N1, reading.read(cluster.writers, N1, b"hello"))
    again = commit(N1, 9, registered("n1", "n1g1", incarnation=2))
    fold.apply_entry(cluster, cluster.seq + 1, N1, reading.read(cluster.writers, N1, raw(again)))
    assert (cluster.nodes[node("n1")].takes_work, cluster.nodes[node("n1")].ignored) == (True, 1)


def test_a_node_that_never_registered_is_counted_and_has_no_record() -> None:
    cluster = begun().cluster
    ignored = reading.ignored(subjects.node("n9"), "junk")
    fold.apply_entry(cluster, cluster.seq + 1, subjects.node("n9"), ignored)
    assert (cluster.ignored, NodeId("n9") in cluster.nodes) == (1, False)


def test_a_registration_far_ahead_of_the_last_is_ignored() -> None:
    history = begun()
    assert not history.say(registered("n1", "n1g1", incarnation=1 << 40))
    assert history.say(registered("n1", "n1g1", incarnation=2))


def test_a_fact_with_too_long_a_list_is_ignored_and_distrusts_its_node() -> None:
    cluster = begun().cluster
    many = f.JobReleased(
        job_id=JobId("j"), attempt=1, node_id=node("n1"), checks={str(n): "" for n in range(65)}
    )
    assert fold.apply(cluster, many, stamp_of(N1, 9)).nodes == ("n1",)
    assert "job.released" in cluster.nodes[node("n1")].distrusted


def test_nesting_is_counted_without_recursion() -> None:
    assert not too_deep(nested(DEPTH_MAX - 4))
    assert too_deep(nested(DEPTH_MAX))
    assert too_deep(nested(200_000))


def test_long_messages_that_nest_little_are_not_too_deep() -> None:
    values = [
        1,
        -1,
        200,
        70_000,
        1 << 40,
        1.5,
        True,
        None,
        "x" * 40,
        "x" * 300,
        "x" * 70_000,
        b"x" * 9,
        b"x" * 300,
        b"x" * 70_000,
    ]
    wide = [
        values,
        {str(n): [] for n in range(70)},
        {str(n): {} for n in range(20)},
        list(range(15_000)),
        "\u07ff" * 99,
    ]
    assert not too_deep(msgspec.msgpack.encode(wide * 3))
    exts = [msgspec.msgpack.Ext(1, b"x" * size) for size in (1, 2, 4, 8, 16, 9, 300, 70_000)]
    assert not too_deep(msgspec.msgpack.encode([[each] for each in exts] * 20))
    pairs = b"".join(
        msgspec.msgpack.encode(str(n)) + msgspec.msgpack.encode(n) for n in range(10_000)
    )
    assert not too_deep(b"\x91\xdf" + (10_000).to_bytes(4, "big") + pairs + b"\x90" * 99)
    assert not too_deep(b"\x91" * DEPTH_MAX + b"\xdd")


def test_a_stamp_of_a_gateway_is_never_distrusted() -> None:
    cluster = begun().cluster
    fold.apply(
        cluster,
        f.Ignored(name="", raw=b"", reason="junk"),
        Stamp(seq=9, at_ns=9, epoch=0, writer=subjects.GATEWAY_KIND, writer_id="n1"),
    )
    assert cluster.nodes[node("n1")].takes_work


def test_an_agent_does_not_follow_a_forged_incarnation() -> None:
    assert next_incarnation(3, None) == 4
    assert next_incarnation(3, Entry(1, N1, raw(commit(epoch=7)))) == 8
    assert next_incarnation(3, Entry(1, N1, raw(commit(epoch=1 << 50)))) == 4
    assert next_incarnation(3, Entry(1, N1, b"hello")) == 4


@pytest.mark.parametrize("made", [SchedulerState(Cluster()), QuotaState(Cluster())])
def test_a_service_reads_on_after_the_last_commit_of_each_writer(
    made: SchedulerState | QuotaState,
) -> None:
    history = begun(nodes=2)
    for seq, (subject, commit) in enumerate(history.log, 1):
        made.apply_entry(seq, subject, commit)
    assert made.seq == len(history.log)
    assert made.writers == history.cluster.writers
    assert [mark.seq for mark in made.writers.values()] == [2, 3, 4]
