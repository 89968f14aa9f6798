"""Facts on the wire: what is read back, what is refused, and what the golden examples hold for
ever.
"""

import msgspec
import pytest

from libs.common import facts as f
from libs.common.errors import Corrupt, Refused, TooNew
from libs.common.facts import KINDS, VERSION, Commit, Unknown, decode, encode
from libs.common.model import JobId, JobSpec
from tests.golden.examples import EXAMPLES, recorded, with_missing

ADMITTED = f.JobAdmitted(job_id=JobId("j"))


def commit(*facts: f.AnyFact | Unknown) -> Commit:
    return Commit(
        version=VERSION,
        min_reader=VERSION,
        writer="facts.quota",
        number=3,
        epoch=0,
        at_ns=1_700_000_000_000_000_000,
        seen=41,
        facts=facts,
    )


def raw(facts: object, min_reader: int = VERSION) -> bytes:
    """Return a commit as another version would write it, valid or not."""
    return msgspec.msgpack.encode([VERSION + 1, min_reader, "facts.quota", 1, 0, 5, 0, facts])


def of_size(size: int) -> f.JobRejected:
    empty = (
        len(msgspec.msgpack.encode(f.JobRejected(job_id=JobId("j"), reason="x" * 65_000))) - 65_000
    )
    return f.JobRejected(job_id=JobId("j"), reason="x" * (size - empty))


def test_a_commit_reads_back_as_it_was_written() -> None:
    whole = commit(*EXAMPLES)
    assert decode(encode(whole)) == whole


def test_the_same_commit_has_the_same_bytes() -> None:
    assert encode(commit(*EXAMPLES)) == encode(decode(encode(commit(*EXAMPLES))))


@pytest.mark.parametrize("fact", EXAMPLES, ids=f.kind_of)
def test_a_golden_example_decodes_to_what_was_recorded(fact: f.AnyFact) -> None:
    assert (
        msgspec.msgpack.decode(bytes.fromhex(recorded()[f.kind_of(fact)]), type=f.AnyFact) == fact
    )


def test_every_kind_has_one_golden_example() -> None:
    assert sorted(recorded()) == sorted(KINDS) == sorted(f.kind_of(fact) for fact in EXAMPLES)


def test_adding_examples_changes_no_existing_one() -> None:
    old = {"job.admitted": "00", "gone.kind": "01"}
    assert {kind: text for kind, text in with_missing(old).items() if kind in old} == old
    assert with_missing(recorded()) == recorded()


def test_an_example_sets_every_field_to_other_than_its_default() -> None:
    for fact in EXAMPLES:
        for field in msgspec.structs.fields(fact):
            known = field.default if field.default is not msgspec.NODEFAULT else None
            assert (
                getattr(fact, field.name) != known
                or f"{f.kind_of(fact)}.{field.name}" in LEFT_AT_DEFAULT
            )


# Fields whose default is what a right writer says nearly always, whose None is the case to hold, or
# that came after the example.
LEFT_AT_DEFAULT = (
    "job.placed.lender",
    "cluster.restored.restore_id",
    *("array.element_begun.count", "job.requeued.elements", "job.closed.elements"),
    "node.registered.keeps",
    *("node.registered.fence_ms", "node.watchdog_changed.armed_ms"),
    *("tenant.set.max_pool_bytes", "tenant.set.max_models"),
    "secret.set.value_id",
    *("key.created.requests_per_minute", "key.created.tokens_per_minute"),
    *("model.scaled.tenant", "model.undeployed.tenant"),
    *("model.alias_set.tenant", "model.share_set.tenant"),
    "usage.charged.cpu_ms",
    "usage.charged.user",
    "usage.charged.lines",
    *("fabric.probed.refused", "fabric.round_closed.refused"),
    *("fabric.test_begun.job_id", "fabric.test_begun.attempt"),
    "node.registered.fabric_address",
    "node.registered.link_address",
    "usage.charged.memory_ms",
    "usage.charged.hour",
    *("gpu.faulted.verdict", "gpu.faulted.source", "gpu.faulted.alone", "gpu.recovered.checks"),
    "job.placed.expires_ns",
    "notification.set.address_id",
    *("node.lost.reason", "node.lost.lost_ns"),
    *("job.started.isolation", "job.started.image", "job.started.image_in_registry"),
    "job.finished.exit_code",
    "job.finished.run_ms",
    "job.finished.use",
    *("job.idle_warned.policy_ns", "job.idle_warned.ended"),
    "node.lost.over",
    *(
        f"usage.charged.{name}"
        for name in (
            *("began_ns", "ended_ns", "gpus", "busy_share_ms", "idle_share_ms", "use", "parts"),
        )
    ),
    "job.checkpointed.at_ns",
    "node.registered.peer_address",
    "node.registered.peer_key",
    "node.registered.directory",
    *(
        f"node.registered.{name}"
        for name in (
            "cpus_milli",
            "memory_bytes",
            "labels",
            "rack",
            "spine",
            "sockets",
            "tells_health",
        )
    ),
    "node.registered.takes_controls",
    *(f"node.registered.{name}" for name in ("drivers", "absent", "left_out")),
    *(f"node.registered.{name}" for name in ("transport", "transport_why")),
    *("job.submitted.request", "job.submitted.trace"),
    "model.deployed.request",
    *("replicas.scaled.grace_s", "replicas.scaled.drain_until_ns", "replicas.scaled.recovered"),
    *(
        f"tenant.set.{name}"
        for name in (
            "gpu_hours",
            "requests_per_minute",
            "tokens_per_minute",
            "shares_devices",
            "removed",
            "user",
        )
    ),
    "tenant.set.gpu_hours_per",
    "budget.exhausted.month",
    "queue.set.backfill",
    "queue.set.time_slice_s",
    "job.preempted.sliced",
    *("job.requeued.not_before_ns", "job.requeued.excluded_until_ns"),
)


def test_a_fact_without_the_fields_that_came_later_gets_their_defaults() -> None:
    early = raw([{"kind": "job.submitted", "job_id": "j", "spec": {"command": ["true"]}}])
    assert decode(early).facts == (
        f.JobSubmitted(job_id=JobId("j"), spec=JobSpec(command=("true",))),
    )


def test_a_field_of_a_later_version_is_skipped() -> None:
    assert decode(raw([{"kind": "job.admitted", "job_id": "j", "later": [1]}])).facts == (ADMITTED,)


def test_a_kind_of_a_later_version_is_kept_as_bytes_beside_the_known_ones() -> None:
    later = {"kind": "job.dreamt", "of": "sheep"}
    known, unknown = decode(raw([{"kind": "job.admitted", "job_id": "j"}, later])).facts
    assert known == ADMITTED
    assert unknown == Unknown(name="job.dreamt", raw=msgspec.msgpack.encode(later))
    assert f.kind_of(unknown) == "job.dreamt"


@pytest.mark.parametrize(
    "facts", [[], [{"kind": "job.admitted", "job_id": "j"}], [{"kind": "job.dreamt"}]]
)
def test_a_commit_that_needs_a_later_reader_stops_this_one(facts: object) -> None:
    with pytest.raises(
        TooNew, match=f"needs reader version {f.READS + 1}, this is version {f.READS}: upgrade"
    ):
        decode(raw(facts, min_reader=f.READS + 1))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"not a commit",
        encode(commit(ADMITTED))[:-1],
        encode(commit(ADMITTED)) + b"\x00",
        msgspec.msgpack.encode([1, 2]),
        msgspec.msgpack.encode({"facts": []}),
        raw("no list"),
        raw(5),
        raw([])[:-1],
        encode(commit(ADMITTED)).replace(b"facts.quota", b"facts.quot\xff"),
    ],
)
def test_bytes_that_are_no_commit_are_corrupt(data: bytes) -> None:
    with pytest.raises(Corrupt, match="not a commit"):
        decode(data)


@pytest.mark.parametrize(
    ("fact", "name"),
    [
        ("no map", "?"),
        ({"job_id": "without a kind"}, "?"),
        ({"kind": 5}, "?"),
        ({"kind": "job.admitted"}, "job.admitted"),
        ({"kind": "job.admitted", "job_id": 7}, "job.admitted"),
        ({"kind": "job.admitted", "job_id": b"\xff"}, "job.admitted"),
    ],
)
def test_invalid_fact_is_skipped_and_hides_no_other(fact: object, name: str) -> None:
    unread, read = decode(raw([fact, {"kind": "job.admitted", "job_id": "j"}])).facts
    assert (f.kind_of(unread), type(unread), read) == (name, Unknown, ADMITTED)


def test_a_text_that_is_no_unicode_is_skipped_too() -> None:
    data = encode(commit(f.JobAdmitted(job_id=JobId("j\x7f")), ADMITTED)).replace(
        b"j\x7f", b"j\xff"
    )
    assert [f.kind_of(fact) for fact in decode(data).facts] == ["job.admitted"] * 2


def test_fact_at_the_bound_is_accepted_and_one_more_byte_refused() -> None:
    f.check_fact_size(of_size(f.FACT_BYTES_MAX))
    with pytest.raises(Refused, match=r"job\.rejected of 65537 bytes is over the bound of 65536"):
        f.check_fact_size(of_size(f.FACT_BYTES_MAX + 1))


def test_a_commit_over_its_bound_is_refused() -> None:
    encode(commit(*[of_size(f.FACT_BYTES_MAX)] * 7))
    with pytest.raises(Refused, match="over the log's bound of 524288"):
        encode(commit(*[of_size(f.FACT_BYTES_MAX)] * 8))


def test_no_kind_is_named_twice_and_each_is_a_dotted_word() -> None:
    assert len(KINDS) == len(f.AnyFact.__args__)
    assert [kind for kind in KINDS if kind.count(".") != 1 or kind != kind.lower()] == []
