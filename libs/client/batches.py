"""Divide jobs into requests, and build the errors of the refused ones.

Pure. Tests: tests/unit/test_client_batches.py.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from libs.client.errors import ApiError, error_of
from libs.common.model import BATCH_JOBS_MAX

PATH: Final = "/v1/jobs:batch"
# Bytes of one request's jobs; a gateway reads 1 MiB.
BYTES_MAX: Final = 900 << 10


def split(jobs: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Return the jobs in order, as many in one part as one request may have."""
    parts: list[list[Mapping[str, Any]]] = []
    used = 0
    for job in jobs:
        size = len(json.dumps(job, default=str))
        if not parts or len(parts[-1]) == BATCH_JOBS_MAX or used + size > BYTES_MAX:
            parts.append([])
            used = 0
        parts[-1].append(job)
        used += size
    return parts


def refusal(problem: Mapping[str, Any]) -> ApiError:
    """Return the error for the `problem` of a job."""
    return error_of(problem["status"], json.dumps(problem).encode(), PATH)
