"""The jobs that go on when a cluster stops: how many there are, and what the last line says."""

import contextlib
import json
from pathlib import Path
from typing import Final

from libs.common.quantities import counted
from libs.embedded import profile
from libs.embedded.shape import Shape

ASK_S: Final = 2.0
JOBS_MAX: Final = 500


def running_jobs(state: Path, shape: Shape) -> int | None:
    """Return how many jobs run, at most JOBS_MAX; None if the gateway does not say."""
    import http.client  # a start does not need it

    key = profile.known_key(state)
    if profile.kept_state(state) != state or not key:
        return None
    host = shape.gateway.removeprefix("http://").rpartition(":")[0]
    path = f"/v1/jobs?all=1&state=running&limit={JOBS_MAX}"
    connection = http.client.HTTPConnection(host, shape.port, timeout=ASK_S)
    with contextlib.closing(connection):
        try:
            connection.request("GET", path, headers={"authorization": f"Bearer {key}"})
            return len(json.load(connection.getresponse())["jobs"])
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError):
            return None


def words(jobs: int | None, stop_lease_ms: int) -> str:
    """Return what happens to `jobs` running jobs; None stands for an unknown number."""
    if jobs == 0:
        return "No job was running."
    if jobs is None:
        subject, verb, them = "Running jobs", "go", "them"
    else:
        subject = counted(jobs, "job")
        verb, them = ("goes", "it") if jobs == 1 else ("go", "them")
    return (
        f"{subject} {verb} on under supervisors for up to {stop_lease_ms / 60_000:.0f} min; "
        f"`muster up` takes {them} back."
    )
