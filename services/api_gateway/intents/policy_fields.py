"""`scheduling_policy`: a promise between a job and its queue, checked where the job is submitted.

Pure, a part of `intents.py`. The queue decides the order; this word says what the job counts on,
fills in what follows from it, and refuses what contradicts it, so that a job never carries a word
that means nothing. Held by tests/unit/test_gateway_policy_fields.py.
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
# What says where a job may run.
WHERE: Final = ("node_list", "node_labels", "gpu_uuids", "anti_affinity", "model", "vendor")


def take_policy(values: dict[str, Any]) -> None:
    """Check the word against the rest of the request, in place. Raises Refused."""
    match values.get(FIELD, ""):
        case "":
            pass
        case "fifo":
            _refuse("priority" in values, FIFO, "it stands by its submission: leave out priority")
        case "priority":
            _refuse("priority" not in values, PRIORITY, f"give priority, 0 to {PRIORITY_MAX}")
        case "affinity":
            _refuse(
                not any(values.get(name) for name in WHERE),
                AFFINITY,
                f"say where it may run: {', '.join(WHERE)}",
            )
        case "gang":
            _refuse(
                values.get("nodes", 1) == 1,
                GANG,
                "give nodes, 2 or more; it starts on all of them or on none",
            )
        case "real_time":
            _refuse(
                values.setdefault("priority", PRIORITY_MAX) != PRIORITY_MAX,
                REAL_TIME,
                f"its priority is {PRIORITY_MAX}: leave it out",
            )
            _refuse(
                not values.setdefault("reject_if_impossible", True),
                REAL_TIME,
                "it never waits for what cannot be: leave out reject_if_impossible",
            )
        case other:
            raise Refused(
                f"{FIELD}: {other!r} is not known: leave it out, or give "
                f"{', '.join(SCHEDULING_POLICIES[1:])}"
            )


def _refuse(wrong: bool, word: str, remedy: str) -> None:
    if wrong:
        raise Refused(f"{FIELD}: {word}: {remedy}")
