"""Hashes of the state: equal states have equal ones, a member with another state stops."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from libs.common import facts as f
from libs.common import subjects
from libs.common.agreement import follower
from libs.common.agreement.build import fingerprint
from libs.common.agreement.follower import Agreement, check
from libs.common.agreement.tree import (
    Part,
    StateTree,
    bucket_of,
    differing_key,
    differing_parts,
    digest,
    encoded,
    whole_parts,
)
from libs.common.change import Change
from libs.common.errors import Diverged
from libs.common.facts import AnyFact, Commit
from libs.common.folds import job_fold
from libs.common.model import JobId, JobSpec, TenantId
from libs.common.state.cluster import Cluster
from libs.common.state.state_hash import NO_HASH, StateHash
from libs.common.transport import snapshot
from services.scheduler.decide.decide import Observations, decide
from tests.given import given

GATEWAY = subjects.gateway("a")
EVERY = 4


def submitted(name: str) -> f.JobSubmitted:
    spec = JobSpec(command=("true",))
    return f.JobSubmitted(job_id=JobId(name), spec=spec, tenant=TenantId("red"), user="ada")


class Member:
    """One member that folds the log."""

    def __init__(self, every: int = EVERY) -> None:
        self.cluster = Cluster()
        self.agreement = Agreement(every)

    def read(self, subject: str, *facts: AnyFact) -> None:
        mark = self.cluster.writers.get(subject)
        commit = Commit(
            version=f.VERSION,
            min_reader=f.VERSION,
            writer=subject,
            number=mark.number + 1 if mark is not None else 1,
            epoch=self.cluster.epoch,
            at_ns=self.cluster.seq + 1,
            seen=self.cluster.seq,
            facts=facts,
        )
        self.agreement.apply_entry(self.cluster, self.cluster.seq + 1, subject, commit)


def all_read(members: Sequence[Member], subject: str, *facts: AnyFact) -> None:
    for member in members:
        member.read(subject, *facts)


def recorded(hashed: StateHash) -> f.StateHashed:
    return f.StateHashed(seq=hashed.seq, schema=hashed.schema, parts=hashed.parts)


def begun(count: int = 2) -> list[Member]:
    """Members after a hash was due."""
    members = [Member() for _ in range(count)]
    all_read(members, subjects.SCHEDULER, f.TermBegan(instance="s"))
    for name in ("a", "b", "c"):
        all_read(members, GATEWAY, submitted(name))
    return members


def test_members_that_read_the_same_log_have_the_same_hash() -> None:
    one, other = begun()
    assert one.agreement.due(NO_HASH) == other.agreement.due(NO_HASH)
    assert one.agreement.due(NO_HASH).seq == EVERY
    assert set(one.agreement.due(NO_HASH).parts) == {"jobs", *whole_parts()}


def test_a_member_that_agrees_with_the_record_goes_on() -> None:
    leader, member = begun()
    fact = recorded(leader.agreement.due(NO_HASH))
    all_read([leader, member], subjects.SCHEDULER, fact)
    assert member.cluster.state_hash.seq == EVERY
    assert leader.agreement.due(leader.cluster.state_hash) == NO_HASH


def test_a_member_with_another_state_stops_and_names_the_parts() -> None:
    leader, member = Member(), Member()
    all_read([leader, member], subjects.SCHEDULER, f.TermBegan(instance="s"))
    for name in ("a", "b", "c"):
        leader.read(GATEWAY, submitted(name))
        member.cluster.port_last = 7
        member.read(GATEWAY, submitted(name))
    fact = recorded(leader.agreement.due(NO_HASH))
    with pytest.raises(Diverged, match="after commit 4: port_last differ") as stopped:
        member.read(subjects.SCHEDULER, fact)
    assert (stopped.value.seq, stopped.value.parts) == (EVERY, ("port_last",))


def test_a_job_that_differs_is_named_by_its_key() -> None:
    leader, member = begun()
    own = member.agreement.tree
    assert own is not None
    member.cluster.jobs[JobId("b")].charged = 3
    own.note((), [Change(jobs=(JobId("b"),))])
    own.hashed(member.cluster, EVERY)
    assert leader.agreement.tree is not None
    place = bucket_of("b")
    ours, theirs = own.buckets["jobs"][place], leader.agreement.tree.buckets["jobs"][place]
    assert differing_key(ours, theirs) == "b"
    assert differing_key(ours, ours) == ""


def test_hashes_of_another_schema_or_place_are_not_compared() -> None:
    own = StateHash(seq=4, schema="a", parts={"jobs": b"1"})
    check(StateHash(seq=4, schema="b", parts={"jobs": b"2"}), own)
    check(StateHash(seq=4, schema="a", parts={"jobs": b"2"}), None)
    with pytest.raises(Diverged, match="jobs, keys differ"):
        check(StateHash(seq=4, schema="a", parts={"jobs": b"2", "keys": b"3"}), own)


def test_without_a_number_of_commits_nothing_is_hashed() -> None:
    member = Member(every=0)
    member.read(subjects.SCHEDULER, f.TermBegan(instance="s"))
    assert member.agreement.tree is None
    assert member.agreement.due(NO_HASH) == NO_HASH


def test_a_state_that_was_loaded_again_begins_a_new_tree() -> None:
    (member,) = begun(1)
    before = member.agreement.tree
    member.cluster = Cluster()
    member.read(subjects.SCHEDULER, f.TermBegan(instance="s"))
    assert member.agreement.tree is not before
    assert member.agreement.due(NO_HASH) == NO_HASH


def test_a_hash_is_left_out_while_too_much_is_to_be_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follower, "WORK_A_COMMIT", 0)
    monkeypatch.setattr(follower, "BACKLOG_MAX", 2)
    (leader,) = begun(1)
    member = Member()
    member.cluster = snapshot.copy(leader.cluster)
    for number in range(EVERY):
        member.read(GATEWAY, submitted(f"later-{number}"))
    assert member.agreement.due(NO_HASH) == NO_HASH


def test_many_changed_jobs_do_not_end_hashing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(follower, "BACKLOG_MAX", 20)
    leader, restarted = Member(), Member()
    leader.read(subjects.SCHEDULER, f.TermBegan(instance="s"))
    for batch in range(2):
        leader.read(GATEWAY, *(submitted(f"{batch}-{number}") for number in range(40)))
    restarted.cluster = snapshot.copy(leader.cluster)
    for number in range(4 * EVERY + 1):
        all_read([leader, restarted], GATEWAY, submitted(f"later-{number}"))
    hashed = leader.agreement.due(NO_HASH)
    assert hashed.seq == leader.cluster.seq
    all_read([leader, restarted], subjects.SCHEDULER, recorded(hashed))


def test_only_the_newest_hashes_are_kept() -> None:
    member = Member(every=1)
    member.read(subjects.SCHEDULER, f.TermBegan(instance="s"))
    for number in range(follower.KEPT_MAX + 3):
        member.read(GATEWAY, submitted(f"j{number}"))
    assert len(member.agreement.kept) == follower.KEPT_MAX
    assert member.agreement.due(NO_HASH).seq == member.cluster.seq


def test_a_frozen_part_does_not_change_with_the_live_one() -> None:
    part = Part()
    part.put("a", b"\1" * 16)
    before, digest = part.frozen(), part.digest()
    part.put("a", b"\2" * 16)
    assert before[bucket_of("a")] == {"a": b"\1" * 16}
    part.put("a", None)
    part.put("a", None)
    part.put("a", b"\1" * 16)
    assert part.digest() == digest


def test_an_older_record_than_the_last_is_ignored() -> None:
    leader, _ = begun()
    hashed = leader.agreement.due(NO_HASH)
    leader.read(subjects.SCHEDULER, recorded(hashed))
    ignored = leader.cluster.ignored
    leader.read(subjects.SCHEDULER, recorded(hashed))
    assert leader.cluster.ignored == ignored + 1


def test_the_scheduler_records_each_hash_once() -> None:
    state = given()
    hashed = StateHash(seq=4, schema="a", parts={"jobs": b"1"})
    observed = Observations(hashed=hashed)
    facts = decide(state, 0, observed)
    assert facts == (recorded(hashed),)
    state.apply_own(facts, 0)
    assert decide(state, 0, observed) == ()


def test_the_bytes_are_the_same_in_every_version_of_python() -> None:
    spec = JobSpec(command=("true",), env={"b": "ü", "a": ""})
    value = {"z": [1.5, None, -1, 1 << 40], "a": b"\0", "spec": spec.env}
    assert digest(encoded(value)).hex() == "17786b515734e3074a72c4706677c513"
    assert encoded({"b": 1, "a": 2}) == encoded({"a": 2, "b": 1})
    assert encoded({2: "b", 1: "a"}) == encoded({"1": "a", "2": "b"})


def test_builds_do_not_compare_their_hashes_with_those_of_others() -> None:
    leader, member = begun()
    leader.read(subjects.SCHEDULER, recorded(leader.agreement.due(NO_HASH)))
    own = replace(member.agreement.due(NO_HASH), parts={"jobs": b"another"})
    assert own.schema == fingerprint()
    with pytest.raises(Diverged):
        check(leader.cluster.state_hash, own)
    check(leader.cluster.state_hash, replace(own, schema="of another build"))


def test_jobs_that_left_the_state_are_in_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_fold, "ENDED_JOBS_KEPT", 1)
    leader = Member()
    leader.read(subjects.SCHEDULER, f.TermBegan(instance="s"))
    for name in ("a", "b", "c"):
        leader.read(GATEWAY, submitted(name))
    for name in ("a", "b", "c"):
        leader.read(subjects.QUOTA, f.JobRejected(job_id=JobId(name), reason="no room"))
    restarted = Member()
    restarted.cluster = snapshot.copy(leader.cluster)
    all_read([leader, restarted], GATEWAY, submitted("d"))
    hashed = leader.agreement.due(NO_HASH)
    assert (hashed.seq, list(leader.cluster.jobs)) == (2 * EVERY, ["c", "d"])
    all_read([leader, restarted], subjects.SCHEDULER, recorded(hashed))


def test_a_job_with_numbers_as_keys_has_a_hash() -> None:
    (member,) = begun(1)
    before = StateTree(member.cluster).hashed(member.cluster, 4)
    member.cluster.jobs[JobId("a")].used = {1: {"red ada k": 64}}
    hashed = StateTree(member.cluster).hashed(member.cluster, 4)
    assert differing_parts(before, hashed) == ["jobs"]
