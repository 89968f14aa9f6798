"""Makes the traces of an agent from its settings."""

from collections.abc import Sequence
from pathlib import Path

from libs.common.model import AttemptRef
from libs.common.settings.settings import Settings
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.job_ownership import unnoted
from services.node_agent.tracing.tracing import Tracing


def tracing_of(settings: Settings, jobs: JobDirectories) -> Tracing:
    """Return the traces of this node's jobs."""
    if not settings.traces:
        return Tracing()

    def origin(ref: AttemptRef) -> tuple[Sequence[int], str]:
        found = jobs.root_of(ref)
        return found[2] if found is not None else unnoted(), jobs.tenant_of(ref)

    return Tracing(
        Path(settings.state).resolve(),
        settings.trace_job_bytes,
        settings.trace_bytes,
        origin=origin,
    )
