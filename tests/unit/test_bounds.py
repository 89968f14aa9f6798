"""Everything that a node says in a fact is brought within its bounds, in `apply`."""

import msgspec

from libs.common import facts as f
from libs.common.bounds import NUMBER_MAX, TEXT_MAX, UUID_MAX, bounded
from libs.common.life import job_life
from libs.common.model import AttemptRef, JobId, NodeId
from libs.common.transport import snapshot
from services.quota.decide import decide
from services.quota.state import State
from tests.history import (
    begun,
    closed,
    finished,
    gpu,
    job,
    member,
    node,
    placed,
    registered,
    released,
    started,
)

HUGE = (1 << 64) - 1
EXACT = f.JobFinished(
    job_id=JobId("j"),
    attempt=1,
    node_id=NodeId("n1"),
    exit_code=3,
    signal=9,
    run_ms=1_000,
    detail="x",
)


def test_a_fact_within_its_bounds_is_the_same_object() -> None:
    whole = registered("n1", "a", "b", attempts=(AttemptRef(JobId("j"), 1),))
    whole = msgspec.structs.replace(
        whole, labels={"a": "b"}, sockets=(0, 1), isolation={"cpu": "enforced"}
    )
    assert bounded(whole) is whole
    assert bounded(EXACT) is EXACT


def test_numbers_and_texts_past_their_bounds_are_clamped() -> None:
    wild = msgspec.structs.replace(
        EXACT,
        exit_code=HUGE,
        signal=-5,
        run_ms=HUGE,
        stdout_bytes=HUGE,
        detail="x" * (TEXT_MAX + 1),
    )
    found = bounded(wild)
    assert isinstance(found, f.JobFinished)
    assert (found.exit_code, found.signal, found.run_ms, found.stdout_bytes) == (
        (1 << 31) - 1,
        0,
        1 << 38,
        NUMBER_MAX,
    )
    assert len(found.detail) == TEXT_MAX


def test_the_devices_and_texts_inside_a_registration_are_clamped() -> None:
    card = msgspec.structs.replace(gpu("a"), memory_bytes=HUGE, power_mw=(-1, HUGE), index=HUGE)
    wild = msgspec.structs.replace(
        registered("n1"), gpus=(card,), labels={"k": "v" * (TEXT_MAX + 1)}, memory_bytes=-1
    )
    found = bounded(wild)
    assert isinstance(found, f.NodeRegistered)
    assert (found.gpus[0].memory_bytes, found.gpus[0].power_mw, found.gpus[0].index) == (
        1 << 50,
        (0, 1 << 31),
        1 << 15,
    )
    assert (found.memory_bytes, len(found.labels["k"])) == (0, TEXT_MAX)


def test_a_list_that_is_too_long_is_no_fact() -> None:
    assert bounded(registered("n1", *(f"g{n}" for n in range(257)))) is None
    assert (
        bounded(msgspec.structs.replace(registered("n1"), labels={str(n): "" for n in range(257)}))
        is None
    )


def test_device_with_a_name_that_is_too_long_is_not_registered() -> None:
    """Placements name their devices.

    64 names of 8 KiB would fill a commit, and a job on honest nodes beside them would be rejected.
    """
    longest = registered("n1", "g" * UUID_MAX)
    assert bounded(longest) is longest
    assert bounded(registered("n1", "a", "g" * (UUID_MAX + 1))) is None


def test_impossible_run_time_is_charged_by_the_placed_time() -> None:
    history = begun()
    history.queue("j", cpus_milli=128_000, memory_bytes=1 << 50)
    assert history.say(placed("j", member("n1", "n1g1")), started("j", "n1"))
    assert history.say(
        msgspec.structs.replace(finished("j", "n1"), run_ms=1 << 63),
        released("j", "n1"),
        closed("j"),
    )
    (charge,) = history.cluster.uncharged.values()
    span_ms = 4_000
    assert charge.share_ms <= 100 * (2 * span_ms + 60_000)
    assert snapshot.decode(snapshot.encode(history.cluster)) == history.cluster
    charged = decide(State(history.cluster), 0)
    assert history.say(*charged)
    assert snapshot.decode(snapshot.encode(history.cluster)) == history.cluster


def test_possible_run_time_is_charged() -> None:
    history = begun()
    history.queue("j")
    history.say(placed("j", member("n1", "n1g1")), started("j", "n1"))
    history.say(
        msgspec.structs.replace(finished("j", "n1"), run_ms=700), released("j", "n1"), closed("j")
    )
    assert [charge.share_ms for charge in history.cluster.uncharged.values()] == [70_000]


def test_a_node_says_nothing_of_jobs_that_were_never_placed_there() -> None:
    history = begun(nodes=2)
    history.queue("j")
    history.say(placed("j", member("n2", "n2g1")), started("j", "n2"))
    error = f.GpuErrorSeen(
        node_id=node("n1"),
        uuid=gpu("n1g1").uuid,
        error="xid 31",
        verdict="app",
        source="driver",
        jobs=(AttemptRef(job("j"), 1),),
    )
    assert history.say(error)
    assert not history.say(
        f.JobCheckpointed(job_id=job("j"), attempt=1, node_id=node("n1"), asked=True)
    )
    over = f.JobOverShare(
        job_id=job("j"),
        attempt=1,
        node_id=node("n1"),
        uuid=gpu("n1g1").uuid,
        used_bytes=2,
        share_bytes=1,
        grace_s=0,
    )
    assert not history.say(over)
    assert (history.job("j").gpu_errors, history.job("j").preemption.checkpoints) == ([], 0)
    assert history.say(msgspec.structs.replace(over, node_id=node("n2")))


def test_a_node_may_speak_of_a_job_whose_earlier_attempt_it_had() -> None:
    history = begun(nodes=2)
    history.queue("j")
    history.say(
        placed("j", member("n1", "n1g1")),
        started("j", "n1"),
        finished("j", "n1", 1),
        released("j", "n1"),
    )
    assert history.say(f.JobRequeued(job_id=job("j"), attempt=1, reason="failed", counted=True))
    assert history.job("j").state == job_life.QUEUED
    assert history.say(f.JobCheckpointed(job_id=job("j"), attempt=1, node_id=node("n1")))
