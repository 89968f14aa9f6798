"""Philly (Microsoft, ATC'19). A virtual cluster (`vc`) is a tenant.

Columns: job_id, submit_s, gpus, duration_s, vc.
"""

from services.scheduler.simulate.trace import Row

COLUMNS = frozenset(("job_id", "submit_s", "gpus", "duration_s", "vc"))


def read(line: dict[str, str]) -> Row:
    return Row(
        name=line["job_id"],
        submit_s=float(line["submit_s"]),
        duration_s=float(line["duration_s"]),
        gpus=int(line["gpus"]),
        tenant=line["vc"],
    )
