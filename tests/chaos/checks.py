"""Rules that must hold after every process was killed: one function per rule.

Each returns a list of sentences, which is empty when the rule holds. The functions are pure. `jobs`
are the gateway's jobs by id, `facts` the kinds of each job's facts in the log, and `lives` the
records that the jobs wrote themselves. `test_checks.py` plants a fault for each rule.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from tests.chaos.lives import Life, by_job

ENDED: Final = ("completed", "failed", "cancelled", "rejected")
CANCELLED: Final = "cancelled"
Jobs = Mapping[str, Mapping[str, Any]]
Lives = dict[tuple[str, int], Life]
Facts = Mapping[str, Sequence[str]]


def every_name_was_stored_once(jobs: Jobs, names: Iterable[str]) -> list[str]:
    count = Counter(str(job["name"]) for job in jobs.values())
    return [f"{name} is stored {count[name]} times" for name in names if count[name] != 1]


def every_job_ended_as_it_should(jobs: Jobs, expected: Mapping[str, str]) -> list[str]:
    return [
        (
            f"{job_id} ({job['name']}) is {job['state']} ({job['reason']}), and should be "
            f"{expected[str(job['name'])]}"
        )
        for job_id, job in jobs.items()
        if job["state"] not in ENDED or job["state"] != expected[str(job["name"])]
    ]


def every_job_was_closed_once(facts: Facts) -> list[str]:
    closed = {job_id: kinds.count("job.closed") for job_id, kinds in facts.items()}
    return [
        f"{job_id} has {count} job.closed in the log"
        for job_id, count in closed.items()
        if count != 1
    ]


def every_attempt_was_placed_once(jobs: Jobs, facts: Facts) -> list[str]:
    """The last attempt of a cancelled job may have ended before its placement."""
    placed = {job_id: kinds.count("job.placed") for job_id, kinds in facts.items()}
    return [
        f"{job_id} was placed {count} times for {jobs[job_id]['attempt']} attempts"
        for job_id, count in placed.items()
        if count
        not in (
            jobs[job_id]["attempt"],
            jobs[job_id]["attempt"] - (jobs[job_id]["state"] == CANCELLED),
        )
    ]


def no_attempt_started_twice(lives: Lives) -> list[str]:
    return [
        (
            f"{life.job_id} attempt {life.attempt} has {life.starts} start lines, of the "
            f"processes {life.pids}"
        )
        for life in lives.values()
        if life.starts != 1 or len(life.pids) != 1
    ]


def no_two_attempts_lived_at_once(lives: Lives) -> list[str]:
    wrong = []
    for attempts in by_job(lives).values():
        for earlier, later in pairwise(attempts):
            overlap_ns = earlier.last_ns - later.first_ns
            if overlap_ns >= 0:
                what = (
                    f"{earlier.job_id}: attempt {earlier.attempt} lived on "
                    f"{overlap_ns / 1e6:.1f} ms"
                )
                wrong.append(f"{what} after attempt {later.attempt} began")
    return wrong


def completed_jobs_reached_their_end(jobs: Jobs, lives: Lives) -> list[str]:
    """The last attempt of a completed job wrote its end line exactly once."""
    wrong = []
    for job_id, job in jobs.items():
        life = lives.get((job_id, int(job["attempt"])))
        if job["state"] == "completed" and (life is None or life.ends != 1):
            wrong.append(
                f"{job_id} is completed, and its attempt {job['attempt']} did not write its "
                "end once"
            )
    return wrong


def unended_attempts_are_accounted_for(jobs: Jobs, lives: Lives) -> list[str]:
    """An attempt without an end line has a successor, or is recorded as failed."""
    return [
        f"{life.job_id} attempt {life.attempt} wrote no end, is the last of "
        f"{jobs[life.job_id]['attempt']}, "
        f"and the job is {jobs[life.job_id]['state']}"
        for life in lives.values()
        if life.ends == 0
        and life.attempt >= int(jobs[life.job_id]["attempt"])
        and jobs[life.job_id]["state"] != "failed"
    ]


def every_life_was_ordered(jobs: Jobs, lives: Lives) -> list[str]:
    return [
        (
            f"{job_id} attempt {attempt} lived, and the cluster knows "
            f"{jobs[job_id]['attempt'] if job_id in jobs else 'no such job'}"
        )
        for job_id, attempt in lives
        if job_id not in jobs or attempt > int(jobs[job_id]["attempt"])
    ]


def every_gpu_is_free(gpus: Sequence[Mapping[str, Any]], total: int) -> list[str]:
    busy = [
        f"{gpu['uuid']} of {gpu['node_id']} is {gpu['state']}"
        for gpu in gpus
        if gpu["state"] != "AVAILABLE"
    ]
    return [
        *busy,
        *([] if len(gpus) == total else [f"{len(gpus)} GPUs are known, and there are {total}"]),
    ]


def frozen_jobs_died_within_their_lease(
    lives: Lives, frozen_ns: int, lease_ms: int, doomed: Iterable[str]
) -> list[str]:
    """Attempt 1 of each job on the frozen node writes nothing after the lease has ended."""
    limit_ns = frozen_ns + lease_ms * 1_000_000
    return [
        (
            f"{job_id} lived {(lives[job_id, 1].last_ns - frozen_ns) / 1e9:.2f} s after its "
            f"agent froze, with a lease of {lease_ms} ms"
        )
        for job_id in doomed
        if (job_id, 1) in lives and lives[job_id, 1].last_ns > limit_ns
    ]


def on_lives(jobs: Jobs, facts: Facts, lives: Lives) -> list[str]:
    """Check the rules that hold for jobs of any kind."""
    return [
        *every_life_was_ordered(jobs, lives),
        *every_job_was_closed_once(facts),
        *every_attempt_was_placed_once(jobs, facts),
        *no_attempt_started_twice(lives),
        *no_two_attempts_lived_at_once(lives),
    ]


def on_jobs(jobs: Jobs, expected: Mapping[str, str], facts: Facts, lives: Lives) -> list[str]:
    """Check all rules above that concern jobs."""
    return [
        *every_name_was_stored_once(jobs, expected),
        *every_job_ended_as_it_should(jobs, expected),
        *on_lives(jobs, facts, lives),
        *completed_jobs_reached_their_end(jobs, lives),
        *unended_attempts_are_accounted_for(
            jobs, {key: life for key, life in lives.items() if key[0] in jobs}
        ),
    ]
