"""Makes the traces of an agent from its settings."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libs.common.model import AttemptRef
from libs.common.settings.settings import Settings
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.directories.job_ownership import unnoted
from services.node_agent.tracing.cupti.building import built, headers
from services.node_agent.tracing.tracing import Tracing

CUPTI: Final = "cupti"
CUDA: Final = "CUDA_HOME"


def tracing_of(settings: Settings, jobs: JobDirectories) -> Tracing:
    """Return the traces of this node's jobs."""
    if not settings.traces:
        return Tracing()

    def origin(ref: AttemptRef) -> tuple[Sequence[int], str]:
        found = jobs.root_of(ref)
        return found[2] if found is not None else unnoted(), jobs.tenant_of(ref)

    folder = Path(settings.state).resolve()

    def build() -> str:
        if not settings.trace_cupti:
            return ""
        return str(built(folder / CUPTI, headers(os.environ.get(CUDA, ""))))

    return Tracing(
        folder,
        settings.trace_job_bytes,
        settings.trace_bytes,
        build=build,
        origin=origin,
    )
