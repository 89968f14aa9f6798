"""The line that shows how far a job is: rewritten in a terminal, a line for each change elsewhere.

Tests: tests/unit/test_client_display.py.
"""

from typing import Any, TextIO

from libs.client.display import job_line


class Progress:
    """Writes the state of a job whenever it has changed."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.rewrites = file.isatty()
        self.last = ""

    def show(self, job: Any) -> None:  # noqa: ANN401  a JobShown
        """Write the line of the job if it differs from the last one."""
        line = progress_line(job)
        if line == self.last:
            return
        padding = " " * max(0, len(self.last) - len(line))
        self.file.write(f"\r{line}{padding}" if self.rewrites else f"{line}\n")
        self.file.flush()
        self.last = line

    def end(self) -> None:
        """End the line in a terminal."""
        if self.rewrites and self.last:
            self.file.write("\n")


def progress_line(job: Any) -> str:  # noqa: ANN401  a JobShown
    """Return the line of a job; that of an array counts its elements by state."""
    if job.array is None:
        return job_line(job)
    states = ", ".join(f"{count} {state}" for state, count in job.array.states.items())
    return f"{job_line(job)} {job.array.numbers}: {states}"
