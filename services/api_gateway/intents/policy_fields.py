"""`scheduling_policy`: the scheduling guarantee that a job requires of its queue.

Pure. The queue decides the order of jobs. This field fills in what follows from the guarantee and
refuses a request that contradicts it, so that a job never carries a word without meaning. Tests:
tests/unit/test_gateway_policy_fields.py.
"""

from typing import Any, Final

from libs.common.errors import Refused
from libs.common.model import PRIORITY_MAX

FIELD: Final = "scheduling_policy"
FIFO: Final = "fifo"
PRIORITY: Final = "priority"
AFFINITY: Final = "affinity"
GANG: Final = "gang"
REAL_TIME: Final = "real_time"
SCHEDULING_POLICIES: Final = ("", FIFO, PRIORITY, AFFINITY, GANG, REAL_TIME)
# Fields that restrict where a job may run.
WHERE: Final = ("node_list", "node_labels", "gpu_uuids", "anti_affinity", "model", "vendor")


def take_policy(values: dict[str, Any]) -> None:
    """Check the guarantee against the other fields, fill in defaults. Raises Refused."""
    match values.get(FIELD, ""):
        case "":
            pass
        case "fifo":
            _refuse_if(
                "priority" in values, FIFO, "jobs run in order of submission: leave out priority"
            )
        case "priority":
            _refuse_if(
                "priority" not in values, PRIORITY, f"priority is missing: give 0 to {PRIORITY_MAX}"
            )
        case "affinity":
            _refuse_if(
                not any(values.get(name) for name in WHERE),
                AFFINITY,
                f"no field restricts where the job may run: give one of {', '.join(WHERE)}",
            )
        case "gang":
            _refuse_if(
                values.get("nodes", 1) == 1,
                GANG,
                "the job has one node: give nodes, 2 or more",
            )
        case "real_time":
            _refuse_if(
                values.setdefault("priority", PRIORITY_MAX) != PRIORITY_MAX,
                REAL_TIME,
                f"the priority is always {PRIORITY_MAX}: leave out priority",
            )
            _refuse_if(
                not values.setdefault("reject_if_impossible", True),
                REAL_TIME,
                "a job that cannot run is always rejected at once: leave out reject_if_impossible",
            )
        case other:
            raise Refused(
                f"{FIELD}: {other!r} is not known: leave it out, or give one of "
                f"{', '.join(SCHEDULING_POLICIES[1:])}"
            )


def _refuse_if(wrong: bool, word: str, remedy: str) -> None:
    if wrong:
        raise Refused(f"{FIELD}: {word}: {remedy}")
