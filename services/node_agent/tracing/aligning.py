"""`python -m services.node_agent.tracing.aligning`: align one process's file.

A process of its own, because a file has up to 256 MiB and comes from a job: it can neither hold up
the agent nor take its memory. The file is standard input, the result, compressed with gzip,
standard output; a JSON object with the numbers follows on standard error. The argument is an
`Alignment` as JSON. Tests: tests/integration/test_trace_aligning.py.
"""

import os
import resource
import sys
import zlib
from collections.abc import Iterator
from typing import BinaryIO, Final

import msgspec

from libs.common.traces.chrome_events import Aligner, Alignment, TraceFile, encoded, number
from services.node_agent.tracing.files import RAW_BYTES_MAX

# A gzip member; members that follow each other are one file.
GZIP: Final = 16 + zlib.MAX_WBITS
LEVEL: Final = 3
BLOCK_BYTES: Final = 1 << 20
MEMORY_FACTOR: Final = 8
MEMORY_MIN_BYTES: Final = 1 << 30
NICE: Final = 19
SEPARATOR: Final = b",\n"
# Characters of an error: the job may have written it.
ERROR_MAX: Final = 500


class Aligned(msgspec.Struct, frozen=True):
    """The numbers of one file.

    `rank` is -1 if the file names none; times are on the reference clock.
    """

    events: int = 0
    dropped: int = 0
    rank: int = -1
    first_ns: int = 0
    last_ns: int = 0
    error: str = ""


def align(raw: bytes, alignment: Alignment, out: BinaryIO) -> Aligned:
    """Write the aligned events as a gzip member; each follows a comma."""
    try:
        found = msgspec.json.decode(raw, type=TraceFile)
    except (msgspec.DecodeError, RecursionError) as error:
        return Aligned(error=f"the file of the tracer is not a trace: {error}"[:ERROR_MAX])
    if found.error:
        return Aligned(error=found.error[:ERROR_MAX])
    aligner = Aligner(alignment, found.baseTimeNanoseconds)
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, GZIP)
    events = 0
    for block in _blocks(found, aligner):
        out.write(packer.compress(block))
        events += 1
    for event in aligner.names():
        out.write(packer.compress(SEPARATOR + encoded(event)))
    out.write(packer.flush())
    rank = found.distributedInfo.get("rank", -1)
    return Aligned(
        events=events,
        dropped=aligner.dropped + found.lost,
        rank=rank if isinstance(rank, int) else -1,
        first_ns=aligner.first_ns or 0,
        last_ns=aligner.last_ns or 0,
    )


def _blocks(found: TraceFile, aligner: Aligner) -> Iterator[bytes]:
    decoder = msgspec.json.Decoder(float_hook=number)
    for raw in found.traceEvents:
        try:
            event = decoder.decode(raw)
        except (msgspec.DecodeError, RecursionError, ValueError, ArithmeticError):
            aligner.dropped += 1
            continue
        moved = aligner.aligned(event)
        if moved is not None:
            yield SEPARATOR + encoded(moved)


def main() -> None:
    """Align standard input."""
    os.nice(NICE)
    size = min(os.fstat(0).st_size, RAW_BYTES_MAX)
    bound = max(MEMORY_MIN_BYTES, MEMORY_FACTOR * size)
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    alignment = msgspec.json.decode(sys.argv[1], type=Alignment)
    try:
        done = align(sys.stdin.buffer.read(size), alignment, sys.stdout.buffer)
    except MemoryError:
        done = Aligned(error=f"aligning {size} bytes needs more than {bound} bytes of memory")
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(msgspec.json.encode(done))


if __name__ == "__main__":
    main()
