"""The decision how far to trim the log, and the proof that the archive holds those commits."""

import msgspec
import pytest

from libs.common.errors import Corrupt
from libs.common.transport.log import Entry
from services.audit.chain import chain
from services.audit.store.store import Record
from services.audit.trim.trim import STEP_MAX, Decision, Policy, Standing, decide, prove

POLICY = Policy(keep_commits=100, keep_ns=1, full_percent=50)
AHEAD = {"the scheduler": 10_000, "quota": 10_000, "the archive": 10_000}


def standing(
    base: int = 0,
    young: int = 1,
    last: int = 10_000,
    size: int = 0,
    readers: dict[str, int] = AHEAD,
    bound: int = 0,
) -> Standing:
    return Standing(
        base=base,
        young=young,
        last=last,
        commits=last - base,
        bytes=size,
        bytes_max=bound,
        readers=readers,
    )


def test_old_commits_are_trimmed_and_the_latest_stay() -> None:
    assert decide(POLICY, standing(young=5_001)) == Decision(5_000)
    assert decide(POLICY, standing(young=10_001)) == Decision(9_900)


def test_young_commits_go_when_the_log_is_too_full() -> None:
    assert decide(POLICY, standing(size=600, bound=1_000)) == Decision(1_667)


def test_no_commit_is_trimmed_before_every_reader_has_read_it() -> None:
    for name in AHEAD:
        assert decide(POLICY, standing(young=5_001, readers=AHEAD | {name: 3_000})) == Decision(
            3_000, name
        )
        assert decide(POLICY, standing(young=5_001, readers=AHEAD | {name: 0})) == Decision(0, name)


def test_one_purge_has_a_bound() -> None:
    far = dict.fromkeys(AHEAD, 1_000_000)
    assert decide(POLICY, standing(base=7, young=900_000, last=1_000_000, readers=far)) == Decision(
        7 + STEP_MAX
    )


def test_trimmer_does_nothing_while_little_is_old_or_the_log_is_short() -> None:
    assert decide(POLICY, standing(base=4_995, young=5_001)) == Decision()
    assert decide(POLICY, standing(young=91, last=90)) == Decision()
    assert decide(POLICY, standing(size=500, bound=1_000)) == Decision()


ENTRIES = [Entry(seq, "facts.quota", b"%d" % seq) for seq in range(1, 6)]
RECORDS = [
    Record(
        index=link.index,
        seq=link.seq,
        subject=link.subject,
        data=entry.data,
        at_ns=0,
        hash=link.hash,
        previous_hash=link.previous_hash,
    )
    for link, entry in zip(chain.extend(None, ENTRIES), ENTRIES, strict=True)
]


def test_commits_archived_byte_for_byte_under_a_whole_chain_may_be_trimmed() -> None:
    prove(ENTRIES, RECORDS)
    prove(ENTRIES[2:], RECORDS[1:])


def test_commits_missing_from_the_archive_or_different_there_may_not_be_trimmed() -> None:
    other = msgspec.structs.replace(RECORDS[2], data=b"other")
    forged = msgspec.structs.replace(RECORDS[1], hash="0" * 64)
    for records, text in (
        (RECORDS[:4], "does not hold commit 5"),
        ([*RECORDS[:2], other, *RECORDS[3:]], "commit 3 of the log differs from the archive"),
        ([RECORDS[0], forged, *RECORDS[2:]], "chain is broken at commit 2"),
    ):
        with pytest.raises(Corrupt, match=text):
            prove(ENTRIES, records)
    with pytest.raises(Corrupt, match="chain is broken at commit 3"):
        prove(ENTRIES[2:], RECORDS[2:])
