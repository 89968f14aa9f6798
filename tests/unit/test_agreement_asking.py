"""Questions about hashes of a state: the last hashes, and the entries of a part."""

import msgspec

from libs.common import subjects
from libs.common.agreement.asking import (
    HashAnswer,
    HashAsk,
    answer,
    answering,
    buckets_of,
    entries_of,
)
from libs.common.agreement.tree import BUCKETS, bucket_of
from libs.common.facts import TermBegan
from tests.unit.test_agreement import EVERY, Member, begun


def asked(member: Member, question: HashAsk) -> HashAnswer:
    found = answer(member.agreement, msgspec.msgpack.encode(question))
    assert found is not None
    return msgspec.msgpack.decode(found, type=HashAnswer)


def test_a_question_without_a_part_is_answered_with_the_last_hashes() -> None:
    (member,) = begun(1)
    assert asked(member, HashAsk()).hashes == tuple(member.agreement.kept.values())


def test_a_part_of_jobs_is_answered_by_bucket() -> None:
    (member,) = begun(1)
    found = asked(member, HashAsk(EVERY, "jobs", bucket_of("a")))
    assert found.is_known and "a" in found.entries
    assert len(buckets_of("jobs")) == BUCKETS


def test_a_part_that_is_hashed_whole_is_answered_by_key_or_as_one_entry() -> None:
    (member,) = begun(1)
    writers = asked(member, HashAsk(EVERY, "writers"))
    assert set(writers.entries) == set(member.cluster.writers)
    assert list(asked(member, HashAsk(EVERY, "seq")).entries) == [""]
    assert len(buckets_of("writers")) == 1


def test_a_part_of_another_commit_or_an_unknown_part_is_not_known() -> None:
    (member,) = begun(1)
    assert not asked(member, HashAsk(EVERY + 1, "jobs")).is_known
    assert not asked(member, HashAsk(EVERY, "clouds")).is_known
    assert not asked(Member(every=0), HashAsk(EVERY, "jobs")).is_known


def test_entries_are_as_of_the_last_hash() -> None:
    (member,) = begun(1)
    tree = member.agreement.tree
    assert tree is not None
    before = entries_of(tree, "writers", 0)
    member.read(subjects.SCHEDULER, TermBegan(instance="t"))
    assert entries_of(tree, "writers", 0) == before


async def test_a_question_that_is_not_valid_has_no_answer() -> None:
    (member,) = begun(1)
    assert await answering(member.agreement)("ask.scheduler.hashes", b"\xc1") is None
