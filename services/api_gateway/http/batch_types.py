"""The answer of `POST /v1/jobs:batch`. Its docstrings are the descriptions in /openapi.json."""

import msgspec

from services.api_gateway.http.answer_types import DryRun
from services.api_gateway.views.jobs import JobShown


class BatchProblem(msgspec.Struct):
    """The refusal of one job of a batch: the problem that `POST /v1/jobs` would have answered.

    `retry_after_s`: the seconds after which the job may be submitted again; null if that does not
    help.
    """

    title: str
    status: int
    detail: str
    retry_after_s: int | None = None


class BatchResult(msgspec.Struct):
    """The answer for one job of a batch.

    `status` is what `POST /v1/jobs` would have answered. `job` is the submitted job, `checked` what
    would be recorded (a dry run), and `problem` says why the job was refused; the others are null.
    """

    status: int
    job: JobShown | None = None
    checked: DryRun | None = None
    problem: BatchProblem | None = None


class BatchAnswer(msgspec.Struct):
    """The answers for the jobs of a batch, in the order of the request."""

    jobs: list[BatchResult]
    accepted: int
    refused: int
    seq: int
