"""Rules that the history of a run must keep: one function per rule.

Each returns a list of sentences, which is empty when the rule holds. The functions are pure.
`test_history_checks.py` plants a violation for each rule. The rules for lives are in
`tests/chaos/checks.py`.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.chaos.checks import ENDED
from tests.chaos.machines.history import CANCEL, CLUSTER, READ, SUBMIT, Operation
from tests.chaos.machines.spans import Key, Span

Jobs = Mapping[str, Mapping[str, Any]]
Spans = Mapping[Key, Span]
SECOND_NS: Final = 1_000_000_000
# Longest time from an acknowledged cancellation to the last begin of an attempt: a scheduler that
# was frozen between the two sends its order when it wakes.
LATE_ORDER_NS: Final = 40 * SECOND_NS


def acknowledged_submissions_are_stored(history: Iterable[Operation], jobs: Jobs) -> list[str]:
    return [
        f"{each.name} was acknowledged as {each.job_id} by {each.gateway}, and no such job exists"
        for each in history
        if each.kind == SUBMIT
        and each.accepted
        and (each.job_id not in jobs or jobs[each.job_id]["name"] != each.name)
    ]


def one_submission_has_one_job(history: Iterable[Operation], jobs: Jobs) -> list[str]:
    """A request is stored at most once; with an Idempotency-Key also if it was repeated."""
    tried = defaultdict(list)
    for each in history:
        if each.kind == SUBMIT:
            tried[each.name].append(each)
    stored = defaultdict(list)
    for job_id, job in jobs.items():
        stored[str(job["name"])].append(job_id)
    wrong = [
        f"{name} is stored {len(ids)} times ({', '.join(ids)}) after {len(tried[name])} requests"
        for name, ids in stored.items()
        if len(ids) > 1
    ]
    return wrong + [
        f"{name} is stored, and no client submitted it" for name in stored.keys() - tried
    ]


def refused_submissions_are_not_stored(history: Iterable[Operation], jobs: Jobs) -> list[str]:
    """A request that was refused (4xx) in its every try has no job."""
    ends = defaultdict(list)
    for each in history:
        if each.kind == SUBMIT:
            ends[each.name].append(each)
    stored = {str(job["name"]) for job in jobs.values()}
    return [
        f"{name} was refused with {tries[0].status}, and is stored"
        for name, tries in ends.items()
        if name in stored and all(400 <= each.status < 500 for each in tries)
    ]


def cancelled_jobs_begin_no_more(history: Iterable[Operation], spans: Spans) -> list[str]:
    """No attempt begins later than LATE_ORDER_NS after an acknowledged cancellation."""
    at_ns = {
        each.job_id: each.ended_ns for each in history if each.kind == CANCEL and each.accepted
    }
    return [
        (
            f"{span.job_id} attempt {span.attempt} began "
            f"{(span.first_ns - at_ns[span.job_id]) / SECOND_NS:.1f} s after its cancellation was "
            "acknowledged"
        )
        for span in spans.values()
        if span.job_id in at_ns and span.first_ns > at_ns[span.job_id] + LATE_ORDER_NS
    ]


def an_ended_job_stays_ended(history: Iterable[Operation]) -> list[str]:
    """A gateway that has shown the end of a job never shows another state later."""
    wrong, ended = [], dict[tuple[str, str], Operation]()
    for each in sorted(history, key=lambda each: each.began_ns):
        if each.kind != READ or not each.accepted:
            continue
        before = ended.get((each.gateway, each.job_id))
        if before is not None and before.ended_ns < each.began_ns and before.state != each.state:
            wrong.append(
                f"{each.gateway} showed {each.job_id} as {before.state}, and later as {each.state}"
            )
        if each.state in ENDED and (before is None or each.ended_ns < before.ended_ns):
            ended[each.gateway, each.job_id] = each
    return wrong


def a_gateway_never_goes_back(history: Iterable[Operation]) -> list[str]:
    """The sequence that a gateway shows never falls, also not over its restart."""
    by_gateway = defaultdict(list)
    for each in history:
        if each.kind == CLUSTER and each.accepted:
            by_gateway[each.gateway].append(each)
    return [
        f"{gateway} was at {earlier.seq}, and later at {later.seq}"
        for gateway, found in by_gateway.items()
        for earlier, later in pairwise(sorted(found, key=lambda each: each.began_ns))
        if earlier.ended_ns < later.began_ns and later.seq < earlier.seq
    ]


def an_acknowledged_job_is_seen(history: Iterable[Operation]) -> list[str]:
    """The gateway that acknowledged a job shows it in every later read."""
    known: dict[tuple[str, str], int] = {}
    wrong = []
    for each in sorted(history, key=lambda each: each.began_ns):
        key = (each.gateway, each.job_id)
        if each.kind == SUBMIT and each.accepted:
            known[key] = min(each.ended_ns, known.get(key, each.ended_ns))
        elif (
            each.kind == READ
            and each.status == 404
            and known.get(key, each.began_ns) < (each.began_ns)
        ):
            wrong.append(f"{each.gateway} acknowledged {each.job_id}, and later did not know it")
    return wrong


def no_two_jobs_on_a_gpu(spans: Spans) -> list[str]:
    """The spans of two processes with one GPU never overlap."""
    on_gpu = defaultdict(list)
    for span in spans.values():
        for uuid in span.gpus:
            on_gpu[uuid].append(span)
    wrong = []
    for uuid, found in on_gpu.items():
        latest: Span | None = None
        for span in sorted(found, key=lambda span: span.first_ns):
            if latest is not None and span.first_ns <= latest.last_ns:
                wrong.append(
                    f"{uuid} was used by {latest.job_id} attempt {latest.attempt} and "
                    f"{span.job_id} attempt {span.attempt} at once, for "
                    f"{(min(latest.last_ns, span.last_ns) - span.first_ns) / 1e6:.1f} ms"
                )
            if latest is None or span.last_ns > latest.last_ns:
                latest = span
    return wrong


def quotas_are_held(spans: Spans, limits: Mapping[str, int]) -> list[str]:
    """The GPUs of a tenant's living processes are never more than its limit."""
    wrong = []
    for tenant, limit in limits.items():
        changes = sorted(
            change
            for span in spans.values()
            if span.tenant == tenant
            # An end before a begin of the same time: they did not overlap.
            for change in ((span.first_ns, len(span.gpus)), (span.last_ns, -len(span.gpus)))
        )
        used = most = 0
        for _, change in sorted(changes):
            used += change
            most = max(most, used)
        if most > limit:
            wrong.append(f"tenant {tenant} used {most} GPUs at once, and its limit is {limit}")
    return wrong


def no_rank_started_twice(spans: Spans) -> list[str]:
    return [
        f"{span.job_id} attempt {span.attempt} rank {span.rank} has {span.starts} starts, of the "
        f"processes {span.pids}"
        for span in spans.values()
        if span.starts != 1 or len(span.pids) != 1
    ]


def views_agree(views: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Report the first difference of each view from the first one: path, and both values."""
    (first, expected), *others = views.items()
    return [
        f"{first} and {name} differ at {path}: {one!r} and {other!r}"
        for name, view in others
        for path, one, other in _differences("", expected, view)[:DIFFERENCES_MAX]
    ]


DIFFERENCES_MAX: Final = 5


def _differences(path: str, one: object, other: object) -> list[tuple[str, object, object]]:
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return [
            found
            for key in sorted({*one, *other}, key=str)
            for found in _differences(f"{path}/{key}", one.get(key), other.get(key))
        ]
    if (
        isinstance(one, Sequence)
        and isinstance(other, Sequence)
        and not isinstance(one, str)
        and len(one) == len(other)
    ):
        pairs = enumerate(zip(one, other, strict=True))
        return [found for index, pair in pairs for found in _differences(f"{path}/{index}", *pair)]
    return [] if one == other else [(path, one, other)]


def on_history(history: Sequence[Operation], jobs: Jobs, spans: Spans) -> list[str]:
    """Check all rules above that concern the clients' operations."""
    return [
        *acknowledged_submissions_are_stored(history, jobs),
        *one_submission_has_one_job(history, jobs),
        *refused_submissions_are_not_stored(history, jobs),
        *cancelled_jobs_begin_no_more(history, spans),
        *an_ended_job_stays_ended(history),
        *a_gateway_never_goes_back(history),
        *an_acknowledged_job_is_seen(history),
    ]
