"""Philly (Microsoft, ATC'19), as job_id, submit_s, gpus, duration_s, vc: a virtual cluster is a
tenant.
"""

from services.scheduler.simulate.trace import Row

COLUMNS = frozenset(("job_id", "submit_s", "gpus", "duration_s", "vc"))


def read(line: dict[str, str]) -> Row:
    return Row(
        line["job_id"],
        float(line["submit_s"]),
        float(line["duration_s"]),
        int(line["gpus"]),
        line["vc"],
    )
