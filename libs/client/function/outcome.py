"""The outcome of a shipped function, as the node wrote it.

Unpickling runs code that the outcome names. It comes from the node that ran the function, so call
functions only on clusters whose nodes you trust.
"""

import json
import pickle  # nosec B403
from typing import Any, NoReturn

from libs.client.errors import FunctionFailed, PythonMismatch
from libs.client.function import runner
from libs.client.models.jobs import JobShown


def value_of(data: bytes, job: JobShown) -> Any:  # noqa: ANN401  any type
    """Return what the function returned, or raise what it raised, with the node's traceback.

    Raises FunctionFailed if the outcome cannot be read here, PythonMismatch if the versions differ.
    """
    head, _, payload = data.partition(b"\n")
    try:
        found = json.loads(head)
        state, text = str(found["state"]), str(found["text"])
    except (ValueError, KeyError, TypeError) as error:
        raise failed(job, "its outcome is damaged") from error
    if state == runner.MISMATCH:
        raise PythonMismatch(text, job.state, job.reason, job.exit_code)
    if state == runner.RAISED:
        _raise(payload, text, job)
    try:
        return pickle.loads(payload)  # nosec B301  of the job's own function
    except Exception as error:  # whatever the classes in it raise
        raise failed(job, f"its result cannot be unpickled here: {error!r}") from error


def _raise(payload: bytes, text: str, job: JobShown) -> NoReturn:
    lines = text.strip().splitlines()
    unknown = failed(job, f"it raised {lines[-1] if lines else 'an exception'}", text)
    try:
        error = pickle.loads(payload)  # nosec B301  of the job's own function
    except Exception as fault:  # whatever the class of the exception raises
        unknown.add_note(f"on the node:\n{text}")
        raise unknown from fault
    if not isinstance(error, Exception):
        raise unknown
    error.add_note(f"in job {job.id} on {', '.join(job.node_ids[:3])}:\n{text}")
    raise error


def failed(job: JobShown, why: str, text: str = "") -> FunctionFailed:
    """Return the error for a function without a result."""
    return FunctionFailed(
        f"the function of job {job.id} gave no result: {why}",
        state=job.state,
        reason=job.reason,
        code=job.exit_code,
        traceback=text,
    )
