"""Every generated page: file name under docs/ -> the function that gives its text.

A new page is one row here.
"""

from collections.abc import Callable
from typing import Final

from libs.docs import client_source
from libs.docs.cli_page import cli
from libs.docs.health_page import health
from libs.docs.life_pages import gpu_life, job_life, kept_life, lock_life, node_life
from libs.docs.metrics_page import metrics
from libs.docs.settings_page import env_example, settings
from libs.docs.subjects_page import subjects
from libs.monitoring.board import board_json

PAGES: Final[dict[str, Callable[[], str]]] = {
    "job-life.md": job_life,
    "gpu-life.md": gpu_life,
    "node-life.md": node_life,
    "kept-life.md": kept_life,
    "lock-life.md": lock_life,
    "health.md": health,
    "subjects.md": subjects,
    "settings.md": settings,
    "../.env.example": env_example,
    "cli.md": cli,
    "reference/metrics.md": metrics,
    "../deploy/grafana/gpu-cluster-monitoring.json": board_json,
    **client_source.pages(),
}
