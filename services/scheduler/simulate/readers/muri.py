"""Muri (SIGCOMM'22): slices of Philly for 8 x 8 GPUs. `model` is a neural network here.

Columns: job_id, submit_s, gpus, duration_s, model.
"""

from services.scheduler.simulate.trace import Row

COLUMNS = frozenset(("job_id", "submit_s", "gpus", "duration_s", "model"))


def read(line: dict[str, str]) -> Row:
    return Row(
        line["job_id"], float(line["submit_s"]), float(line["duration_s"]), int(line["gpus"])
    )
