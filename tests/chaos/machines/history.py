"""The history of a run: every operation of every client, and every fault, on one clock."""

from pathlib import Path
from typing import Final

import msgspec

SUBMIT: Final = "submit"
CANCEL: Final = "cancel"
READ: Final = "read"
CLUSTER: Final = "cluster"
# The status of an operation whose answer was lost.
UNKNOWN: Final = 0


class Operation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One request of one client, from its begin to its answer, on the machine's monotonic clock.

    `name` and `key` (the Idempotency-Key) are those of a submission. `job_id`, `state` and `seq`
    are of the answer, `job_id` of a read or a cancellation is of the request.
    """

    kind: str
    gateway: str
    began_ns: int
    ended_ns: int
    status: int
    name: str = ""
    key: str = ""
    job_id: str = ""
    state: str = ""
    seq: int = 0
    said: str = ""

    @property
    def unknown(self) -> bool:
        """Whether the client cannot know if the request took effect."""
        return self.status == UNKNOWN or self.status >= 500

    @property
    def accepted(self) -> bool:
        return 200 <= self.status < 300


class History:
    """`operations` in the order of their ends; each is also a line of the file `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.operations: list[Operation] = []

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        with self.path.open("ab") as file:
            file.write(msgspec.json.encode(operation) + b"\n")
