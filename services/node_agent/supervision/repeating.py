"""Steps that the agent repeats because they failed: without free descriptors no file of an attempt
can be read, and on a full disk none can be written.

Events come once only, so the end of a job would be lost with the step that failed. Tests:
tests/integration/test_supervision_lost_starts.py.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial

from services.node_agent.supervision.supervised_job import Key, SupervisedJob
from services.node_agent.supervisor import records
from services.node_agent.supervisor.records import ExitRecord

logger = logging.getLogger(__name__)


class Repeating:
    """The steps that failed: for each job, the last one of each function."""

    def __init__(self) -> None:
        self._steps: dict[tuple[Key, str], Callable[[], None]] = {}

    def run(self, step: Callable[..., None], job: SupervisedJob, *arguments: object) -> None:
        """Call `step` with a job and further arguments; note it if it raises OSError."""
        try:
            step(job, *arguments)
        except OSError as error:
            self.later(error, step, job, *arguments)

    def later(
        self, error: OSError, step: Callable[..., None], job: SupervisedJob, *arguments: object
    ) -> None:
        """Note a step, because it or what it begins failed with this error."""
        logger.warning("%s attempt %d: %s; the agent tries again", *job.key, error)
        self._steps[job.key, step.__name__] = partial(self.run, step, job, *arguments)

    def repeat(self) -> None:
        """Call the noted steps. One that fails again is noted again."""
        steps, self._steps = self._steps, {}
        for step in steps.values():
            step()


def ends_of(jobs: Iterable[SupervisedJob]) -> list[tuple[SupervisedJob, ExitRecord]]:
    """Return the jobs that have an exit record. Those whose record cannot be read are left out."""
    found = []
    for job in jobs:
        try:
            record = records.read_exit(job.job_dir)
        except OSError as error:
            logger.warning(
                "cannot tell whether %s attempt %d has ended: %s; if descriptors are missing, "
                "raise the agent's limit of open files",
                *job.key,
                error,
            )
            break  # the others need a descriptor too
        if record is not None:
            found.append((job, record))
    return found
