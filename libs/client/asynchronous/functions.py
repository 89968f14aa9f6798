"""Functions as jobs, and the futures of their results.

Tests: tests/integration/test_client_functions.py.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from libs.client import timing
from libs.client.asynchronous import uploads
from libs.client.asynchronous.job import AsyncJob
from libs.client.asynchronous.jobs import AsyncJobs
from libs.client.asynchronous.pauses import pause
from libs.client.display import end_words
from libs.client.errors import ApiError, InvalidRequest, NotFound, TimedOut, TooEarly
from libs.client.function import outcome, packed, runner
from libs.client.function.packed import Arguments
from libs.client.models.jobs import JobShown
from libs.common.life.job_life import COMPLETED, ENDED

T = TypeVar("T")

# The head of an outcome and the largest result.
OUTCOME_BYTES_MAX: Final = runner.RESULT_BYTES_MAX + (1 << 20)
OUTCOME: Final = f"{runner.FOLDER}/{runner.OUTCOME}"
LAST_LINES: Final = 5
LAST_BYTES: Final = 8 << 10


class AsyncFuture(Generic[T]):
    """The result of a shipped function. `ref` is the job, or the element of an array."""

    def __init__(self, jobs: AsyncJobs, ref: str, array: str = "") -> None:
        self._jobs = jobs
        self.ref = ref
        self.array = array

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of job {self.ref}>"

    async def job(self) -> AsyncJob:
        """Return the job as it is now. Raises NotFound for an element that has not begun."""
        return await self._jobs.get(self.ref)

    @property
    async def status(self) -> str:
        """Return the state of the job now; an element that has not begun is queued."""
        try:
            return (await self.job()).state
        except NotFound:
            if not self.array:
                raise
            array = await self._jobs.get(self.array)
            return "cancelled" if array.ended else "queued"

    async def done(self) -> bool:
        """Return whether the job has ended."""
        return (await self.status) in ENDED

    async def result(self, timeout_s: float | None = None, rank: int = 0) -> T:
        """Wait for the job and return what the function returned on the node of `rank`.

        Raises what the function raised, with the node's traceback as a note; FunctionFailed if the
        job ended without an outcome; TimedOut after `timeout_s`.
        """
        job = await self._ended(timeout_s)
        return await self._outcome(job, rank)

    async def results(self, timeout_s: float | None = None) -> list[T]:
        """Wait for the job and return what the function returned on each node, by rank."""
        job = await self._ended(timeout_s)
        return [await self._outcome(job, rank) for rank in range(len(job.node_ids))]

    async def _ended(self, timeout_s: float | None) -> JobShown:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        array_ended = False
        while True:
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimedOut(f"job {self.ref} has not ended after {timeout_s:g} s")
            try:
                return (await self._jobs.wait(self.ref, timeout_s=left_s)).shown
            except NotFound:
                if not self.array:
                    raise
            array = await self._jobs.get(self.array)
            if array_ended:
                raise outcome.failed(array.shown, f"element {self.ref} never began")
            # The element may have begun and ended since it was asked for: then it is there now.
            array_ended = array.ended
            if not array_ended:
                await pause(timing.LOOK_S)

    async def _outcome(self, job: JobShown, rank: int) -> T:
        try:
            data = await self._jobs.file(job.id, OUTCOME, rank=rank, bytes_max=OUTCOME_BYTES_MAX)
        except (NotFound, TooEarly) as error:
            why = f"the job {end_words(job)}" if job.state != COMPLETED else str(error)
            last = await self._last_lines(job, rank) if job.node_ids else ""
            raise outcome.failed(job, why + (f":\n{last}" if last else ""), last) from error
        found: T = outcome.value_of(data, job)
        return found

    async def _last_lines(self, job: JobShown, rank: int) -> str:
        last: list[str] = []
        try:
            async for line in self._jobs.logs(
                job.id, stream="stderr", rank=rank, tail_bytes=LAST_BYTES
            ):
                last = [*last[1 - LAST_LINES :], line]
        except ApiError:
            return ""  # the job's end is the error to report
        return "\n".join(last)

    def logs(
        self, follow: bool = False, stream: str | None = None, rank: int = 0
    ) -> AsyncIterator[str]:
        """Return the lines of the output, as `jobs.logs` does."""
        return self._jobs.logs(self.ref, follow=follow, stream=stream, rank=rank)

    async def cancel(self) -> None:
        """End the job."""
        await self._jobs.cancel(self.ref)


class AsyncFunctions:
    """Functions that run as jobs. `@muster.job` uses it."""

    def __init__(self, jobs: AsyncJobs) -> None:
        self._jobs = jobs

    async def call(
        self,
        function: Callable[..., T],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        python: str | None = None,
        upload: str | Path | None = None,
        **fields: Any,  # noqa: ANN401  the fields of a job
    ) -> AsyncFuture[T]:
        """Run `function(*args, **kwargs)` as a job and return the future of its result.

        `python` is the interpreter on the node; without it that of the same version, else python3.
        `upload` is a directory with modules that the function imports. `fields` are those of
        `jobs.submit`. Raises InvalidRequest with the wrong field.
        """
        calls: list[Arguments] = [(tuple(args), dict(kwargs or {}))]
        job = await self._submit(function, calls, python, upload, fields)
        return AsyncFuture(self._jobs, job.id)

    async def map(
        self,
        function: Callable[..., T],
        items: Iterable[Any],
        *,
        at_once: int | None = None,
        python: str | None = None,
        upload: str | Path | None = None,
        **fields: Any,  # noqa: ANN401  the fields of a job
    ) -> list[AsyncFuture[T]]:
        """Run the function once for each item, as one array, at most `at_once` at a time."""
        calls: list[Arguments] = [((item,), {}) for item in items]
        limit = f"%{at_once}" if at_once else ""
        if "array" in fields:
            raise InvalidRequest("array: map makes the array itself: give at_once instead")
        fields = {**fields, "array": f"0-{len(calls) - 1}{limit}"}
        job = await self._submit(function, calls, python, upload, fields)
        return [
            AsyncFuture(self._jobs, f"{job.id}_{number}", job.id) for number in range(len(calls))
        ]

    async def _submit(
        self,
        function: Callable[..., object],
        calls: Sequence[Arguments],
        python: str | None,
        upload: str | Path | None,
        fields: Mapping[str, Any],
    ) -> AsyncJob:
        files = packed.files_of(function, calls)
        sha256 = await uploads.sent_with(self._jobs.connection, files, upload)
        given = packed.job_fields(function, fields)
        return await self._jobs.submit(packed.command(python), upload=sha256, **given)
