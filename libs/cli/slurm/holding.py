"""Allocations for salloc and for `srun --pty`: they are held while a command runs.

Tests: tests/integration/test_slurm_cluster.py.
"""

import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from types import FrameType
from typing import Any, Final

from libs.cli.faults import Declined
from libs.cli.following.waiting import wait_for
from libs.cli.formats.sbatch_flags import HONOURED
from libs.cli.formats.sbatch_script import Script
from libs.cli.gateway import Json, allocation_path, ask
from libs.cli.jobs import ENDED
from libs.cli.slurm.job_requests import requested, with_flags
from libs.cli.slurm.node_lists import compressed
from libs.cli.slurm.options import Given
from libs.cli.slurm.requests import say, shown_id
from libs.cli.slurm.times import instant
from libs.client.profile import Profile
from libs.common.errors import MusterError

BEGUN: Final = ("running", "releasing", *ENDED)
ENDING: Final = (signal.SIGTERM, signal.SIGHUP)
# HTTP statuses of an allocation that has ended.
OVER: Final = (404, 409, 410)
# Fields of a job that an allocation does not have.
OF_JOBS: Final = (
    "command", "time_limit_s", "requeue", "array", "after", "singleton", "hold", "stdin",
)  # fmt: skip


class NotHeld(MusterError):
    """The allocation ended before its GPUs were held."""


def request_of(given: Given, program: str, also: Sequence[str], profile: Profile) -> dict[str, Any]:
    """Return the body of POST /v1/allocations. Raises Refused."""
    script = with_flags(Script(program, {}, [], tuple(also), on_each_node=True), given)
    written = requested(script, (), given.last("job-name", "interactive"), os.environ)
    for warning in written.warnings:
        say(program, f"warning: {warning}")
    job = written.job
    body = {name: value for name, value in job.items() if name not in OF_JOBS}
    expires = {"expires": job["time_limit_s"]} if job.get("time_limit_s") else {}
    return {"user": profile.user, "workdir": os.path.abspath(""), **body, **expires}


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into SystemExit once, so that what is held is given back.

    Further ones are ignored. A signal that is ignored (nohup) stays so.
    """

    def end(number: int, _: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    before = {
        number: handler
        for number in ENDING
        if (handler := signal.getsignal(number)) is not signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held(profile: Profile, body: Mapping[str, Any], program: str) -> Iterator[Json]:
    """Hold an allocation, and release it at the end. Raises NotHeld, Declined or Unreachable."""
    with ended_by_signals():
        yield from _held(profile, body, program)


def _held(profile: Profile, body: Mapping[str, Any], program: str) -> Iterator[Json]:
    job_id = str(ask(profile, "POST", "/v1/allocations", body=dict(body))["id"])
    try:
        say(program, f"Pending job allocation {shown_id(job_id)}")
        wait_for(profile, job_id, BEGUN)
        shown = ask(profile, "GET", allocation_path(job_id))
        if shown["state"] in ENDED:
            raise NotHeld(
                f"Job allocation {shown_id(job_id)} is {shown['state']}: {shown['reason']}"
            )
        say(program, f"Granted job allocation {shown_id(job_id)}{end_of(shown)}")
        yield shown
    finally:
        release(profile, job_id)


def end_of(shown: Json) -> str:
    """Return when an allocation ends, as a part of a sentence; empty if it is not known."""
    text = shown.get("expires_at")
    return f" until {instant(datetime.fromisoformat(text))}" if text else ""


def release(profile: Profile, job_id: str) -> None:
    """Give an allocation back; one that has ended already is fine."""
    try:
        ask(profile, "DELETE", allocation_path(job_id))
    except Declined as error:
        if error.status not in OVER:
            raise


def environment(shown: Json) -> dict[str, str]:
    """Return Slurm's variables for a command beside the allocation."""
    nodes = [str(node["node_id"]) for node in shown["nodes"]]
    job_id = shown_id(str(shown["id"]))
    return {
        "SLURM_JOB_ID": job_id,
        "SLURM_JOBID": job_id,
        "SLURM_JOB_NODELIST": compressed(nodes),
        "SLURM_NODELIST": compressed(nodes),
        "SLURM_NNODES": str(len(nodes)),
        "SLURM_JOB_NUM_NODES": str(len(nodes)),
    }


NAMES: Final = tuple(
    name
    for name in HONOURED
    if name not in ("array", "requeue", "no-requeue", "hold", "dependency", "export")
    and "container" not in name
)
