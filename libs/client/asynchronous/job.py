"""A job in the hand of a program: what it was when it was last read, and what can be done with it.

Tests: tests/integration/test_client_cluster.py.
"""

from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from libs.client.display import end_words, job_line, table_of
from libs.client.errors import JobFailed
from libs.client.models.jobs import JobShown, Why
from libs.client.models.log import Event
from libs.common.life.job_life import COMPLETED, ENDED

if TYPE_CHECKING:
    from libs.client.asynchronous.jobs import AsyncJobs


class AsyncJob:
    """A job. `shown` has all its fields as they were at the last read; `refresh` reads them again.

    Every field is an attribute too: `job.state`, `job.exit_code`, `job.node_ids`.
    """

    def __init__(self, jobs: "AsyncJobs", shown: JobShown) -> None:
        self._jobs = jobs
        self.shown = shown

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  a field of any type
        if name.startswith("_") or name == "shown":
            raise AttributeError(name)
        return getattr(self.shown, name)

    def __repr__(self) -> str:
        return job_line(self.shown)

    def _repr_html_(self) -> str:
        return table_of(self.shown)

    @property
    def id(self) -> str:
        return self.shown.id

    @property
    def state(self) -> str:
        return self.shown.state

    @property
    def ended(self) -> bool:
        """Return whether the job had ended when it was last read."""
        return self.shown.state in ENDED

    async def refresh(self) -> "AsyncJob":
        """Read the job again, and return it."""
        self.shown = (await self._jobs.get(self.id)).shown
        return self

    async def wait(
        self,
        timeout_s: float | None = None,
        check: bool = False,
        on_change: "Callable[[AsyncJob], object] | None" = None,
        progress: bool = False,
    ) -> "AsyncJob":
        """Wait until the job has ended, and return it.

        `on_change` is called with the job at each change of its state; `progress` writes the state
        on stderr. Raises TimedOut after `timeout_s`, and with `check` JobFailed if the job did not
        complete.
        """
        found = await self._jobs.wait(
            self.id, timeout_s=timeout_s, on_change=on_change, progress=progress
        )
        self.shown = found.shown
        if check:
            self.check()
        return self

    def check(self) -> None:
        """Raise JobFailed if the job has ended without success."""
        shown = self.shown
        if self.ended and shown.state != COMPLETED:
            raise JobFailed(
                f"job {shown.id} {end_words(shown)}",
                state=shown.state,
                reason=shown.reason,
                code=shown.exit_code,
            )

    def logs(
        self, follow: bool = False, stream: str | None = None, rank: int = 0
    ) -> AsyncIterator[str]:
        """Return the lines of the output, as `jobs.logs` does."""
        return self._jobs.logs(self.id, follow=follow, stream=stream, rank=rank)

    def events(self, follow: bool = False) -> AsyncIterator[Event]:
        """Return the facts about the job, as `jobs.events` does."""
        return self._jobs.events(self.id, follow=follow)

    async def why(self) -> Why:
        """Explain why the job waits."""
        return await self._jobs.why(self.id)

    async def cancel(self, grace_s: float | None = None) -> "AsyncJob":
        """End the job, as `jobs.cancel` does."""
        self.shown = (await self._jobs.cancel(self.id, grace_s=grace_s)).shown
        return self

    async def file(self, path: str, rank: int = 0, bytes_max: int | None = None) -> bytes:
        """Return a file of the job's working directory, as `jobs.file` does."""
        return await self._jobs.file(self.id, path, rank=rank, bytes_max=bytes_max)
