"""Waits for a state of a job by long polling, also while the gateway is briefly unreachable."""

import time
from collections.abc import Collection
from typing import Final

from libs.cli.faults import Cut, Declined, Unreachable
from libs.cli.gateway import ask, job_path
from libs.cli.jobs import ENDED, Job
from libs.client.profile import Profile, away_s
from libs.client.timing import POLL_S, Patience

# HTTP statuses of temporary errors.
TEMPORARY: Final = (429, 502, 503, 504)


def wait_for_end(profile: Profile, ref: str, until: float | None = None) -> Job:
    """Return the job when it has ended, or when the monotonic clock shows `until`."""
    return wait_for(profile, ref, ENDED, until)


def wait_for(
    profile: Profile, ref: str, states: Collection[str], until: float | None = None
) -> Job:
    """Return the job when it is in one of `states`, or when the monotonic clock shows `until`.

    Raises Declined, or Unreachable if no answer came for MUSTER_AWAY_S.
    """
    job: Job = {}
    patience = Patience(away_s())
    while until is None or time.monotonic() < until or not job:
        try:
            job = _ask(
                profile, ref, until, "" if states == ENDED else str(job.get("state", "pending"))
            )
        except (Unreachable, Cut, Declined) as error:
            pause_s = patience.pause_s(time.monotonic())
            lasting = isinstance(error, Declined) and error.status not in TEMPORARY
            if lasting or not job or pause_s is None:
                raise
            time.sleep(pause_s)
            continue
        patience.reset()
        ref = str(job["id"])
        if job["state"] in states:
            break
    return job


def _ask(profile: Profile, ref: str, until: float | None, state: str) -> Job:
    """Return the job when it has left `state`; without a state, when it has ended."""
    left = POLL_S if until is None else max(0.0, min(POLL_S, until - time.monotonic()))
    return ask(profile, "GET", job_path(ref, "wait"), {"timeout_s": f"{left:.3f}", "state": state})
