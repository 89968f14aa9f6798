"""Finds repeated submissions in an archived commit, which every fold ignores.

Two gateways that receive one Idempotency-Key at the same moment may each record the job (decision
27). The fold keeps the first submission (`job_fold.submitted`) until ENDED_JOBS_KEPT jobs have
ended after the job. This module follows the same rule. Its answer depends only on the commits
before this one, so it never changes. Only facts that their writer may record count. Tests:
tests/integration/test_audit_repeats.py.
"""

from typing import Final

from libs.common import subjects
from libs.common.state.cluster import ENDED_JOBS_KEPT
from services.audit.store.reading import FactRow, commit_facts, read
from services.audit.store.store import Record, Store

SUBMITTED: Final = "job.submitted"
# Facts that end a job.
ENDS: Final = ("job.closed", "job.rejected")


def repeated(store: Store, record: Record) -> frozenset[int]:
    """Return the positions of the ignored submissions in this commit.

    Only a job with an Idempotency-Key (`request`) can have two.
    """
    if subjects.writer_kind(record.subject) != subjects.WRITER_OF_KIND[SUBMITTED]:
        return frozenset()
    rows = [
        row
        for row in read(record.seq, record.subject, record.data).facts
        if row.kind == SUBMITTED and row.job_id
    ]
    if not rows:
        return frozenset()
    facts = commit_facts(record.data)
    keyed = [row for row in rows if facts[row.position].get("request")]
    return frozenset(row.position for row in keyed if _is_known(store, row))


def _is_known(store: Store, row: FactRow) -> bool:
    """Return whether the fold had the job when this submission came."""
    known_since = 0
    for seq, position in store.seqs_of(row.job_id or "", (SUBMITTED,), row.seq):
        if (seq, position) >= (row.seq, row.position):
            break
        if not known_since or _is_forgotten(store, row.job_id or "", known_since, seq):
            known_since = seq
    return known_since > 0 and not _is_forgotten(store, row.job_id or "", known_since, row.seq)


def _is_forgotten(store: Store, job_id: str, since: int, upto: int) -> bool:
    """Return whether a job submitted at `since` ended and left the fold before `upto`."""
    ended = next((seq for seq, _ in store.seqs_of(job_id, ENDS, upto) if seq > since), 0)
    return ended > 0 and store.has(ENDED_JOBS_KEPT, ENDS, ended, upto)
