"""The body of `POST /v1/jobs:batch`: several jobs in one request.

Pure. Tests: tests/unit/test_gateway_batch_intents.py.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from libs.common import arrays
from libs.common.errors import Refused
from libs.common.facts import COMMIT_BYTES_MAX, JobSubmitted
from libs.common.messages.access_entry import TEXT_MAX
from libs.common.model import BATCH_JOBS_MAX, JobId
from services.api_gateway.intents.fields import check_known, convert, names_of

# Bytes of the facts of one commit. Other tenants' facts have the rest of it.
BYTES_MAX: Final = COMMIT_BYTES_MAX // 2

# Characters of the places of denied jobs in the access record; the reasons have the rest.
NUMBERS_CHARS_MAX: Final = TEXT_MAX // 4


class BatchBody(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs to submit, at most 100, each as in `POST /v1/jobs`.

    `all_or_nothing`: submit all of them, or none if one is refused. Otherwise each job is submitted
    or refused by itself.
    """

    jobs: list[Any]
    all_or_nothing: bool = False


BATCH_FIELDS: Final = names_of(BatchBody)
# `jobs` in /openapi.json, which describes JobBody by the fields of `POST /v1/jobs`.
JOBS_SCHEMA: Final[dict[str, object]] = {
    "type": "array",
    "items": {"$ref": "#/components/schemas/JobBody"},
    "minItems": 1,
    "maxItems": BATCH_JOBS_MAX,
}


def batch(body: object) -> BatchBody:
    """Return the jobs of a request, not checked yet. Raises Refused."""
    if not isinstance(body, dict):
        raise Refused('the request body must be a JSON object: {"jobs": [...]}')
    check_known(body, BATCH_FIELDS, "field")
    found = convert(body, BatchBody)
    if not 1 <= len(found.jobs) <= BATCH_JOBS_MAX:
        raise Refused(f"jobs: {len(found.jobs)} jobs: give 1 to {BATCH_JOBS_MAX} in one request")
    return found


def denials(denied: Mapping[int, str]) -> str:
    """Return why jobs of a batch were denied, by their places: one text for the access record."""
    numbers = ", ".join(map(str, denied))
    if len(numbers) > NUMBERS_CHARS_MAX:
        cut = numbers[:NUMBERS_CHARS_MAX].rpartition(",")[0]
        numbers = f"{cut} and {len(denied) - cut.count(',') - 1} more"
    texts = "; ".join(dict.fromkeys(denied.values()))
    return f"jobs {numbers}: {texts}"[:TEXT_MAX]


class Names:
    """The names of the earlier jobs of a batch, which `after` of a later job may use."""

    def __init__(self) -> None:
        self._ids: dict[str, JobId | None] = {}
        self._arrays: set[str] = set()

    def accept(self, fact: JobSubmitted) -> None:
        """Note an accepted job."""
        self._note(fact.spec.name, fact.job_id, is_array=fact.spec.array is not None)

    def refuse(self, job: object) -> None:
        """Note a refused job, so that no job runs after an older one of the same name instead."""
        name = job.get("name") if isinstance(job, dict) else None
        if isinstance(job, dict) and isinstance(name, str):
            self._note(name, None, is_array="array" in job)

    def _note(self, name: str, job_id: JobId | None, is_array: bool) -> None:
        if not name:
            return
        self._ids[name] = job_id
        if is_array:
            self._arrays.add(name)
        else:
            self._arrays.discard(name)

    def find(self, ref: str) -> JobId | None:
        """Return the id of the last earlier job with this name; None if there is none.

        Raises Refused if that job was refused, and for an element of an array of this batch.
        """
        if ref not in self._ids:
            self._check_element(ref)
            return None
        job_id = self._ids[ref]
        if job_id is None:
            raise Refused(
                f"after: {ref[:64]!r} is an earlier job of this batch, and it was refused: correct "
                "it, and submit both again"
            )
        return job_id

    def _check_element(self, ref: str) -> None:
        """Raise Refused for an element of an array of this batch, which has not begun.

        Otherwise the job would run after the element of an older array of the same name.
        """
        array, _ = arrays.element_of(ref)
        if array in self._arrays:
            raise Refused(
                f"after: {ref[:64]!r} is an element of an array of this batch, and has not begun: "
                f"give the array, {array[:64]!r}, or submit this job when the element runs"
            )
