"""`python -m services.node_agent.diagnosis.dump_reading`: read dumps of the flight recorder.

A process of its own, because a dump comes from a job: a pickle of some bytes can ask for any amount
of memory. It is read without any class or function, so it can run nothing. The arguments are open
descriptors; a `Recorded` as JSON on a line of standard output follows for each. Tests:
tests/integration/test_diagnosis_recorders.py.
"""

import io
import json
import os
import pickle  # nosec B403: read by NoObjects alone
import resource
import sys
from typing import Final, NoReturn

import msgspec

from libs.common.diagnosis.collectives import from_recorder
from libs.common.diagnosis.evidence import Collective

DUMP_BYTES: Final = 8 << 20
MEMORY_BYTES: Final = 1 << 30
# The answer for one dump. The ranks of its process groups are the greatest part.
ANSWER_BYTES: Final = 1 << 20


class Recorded(msgspec.Struct, frozen=True):
    """The last collectives in a dump. `error` says why it could not be read."""

    collectives: tuple[Collective, ...] = ()
    error: str = ""


class NoObjects(pickle.Unpickler):
    """Reads pickles of plain data only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise pickle.UnpicklingError(f"{module}.{name} is not plain data")

    def persistent_load(self, pid: object) -> NoReturn:
        raise pickle.UnpicklingError("a reference is not plain data")


def answer(descriptor: int) -> bytes:
    """Return what an open dump has, as JSON of at most ANSWER_BYTES."""
    try:
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(DUMP_BYTES)
        found = msgspec.json.encode(Recorded(from_recorder(_plain(data)) if data else ()))
    except (OSError, ValueError, MemoryError) as error:
        return msgspec.json.encode(Recorded(error=str(error)))
    if len(found) > ANSWER_BYTES:
        text = f"its collectives have {len(found)} bytes, and at most {ANSWER_BYTES} are read"
        return msgspec.json.encode(Recorded(error=text))
    return found


def _plain(data: bytes) -> object:
    """Return the data of a dump: JSON or a pickle without objects. Raises ValueError."""
    try:
        if data[:1] == b"{":
            found: object = json.loads(data)
        else:
            found = NoObjects(io.BytesIO(data)).load()
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise ValueError(f"the dump cannot be read: {error!r:.200}") from error
    return found


def main() -> None:
    """Read the dumps."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for word in sys.argv[1:]:
        sys.stdout.buffer.write(answer(int(word)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
