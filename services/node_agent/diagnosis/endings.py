"""The exceptions that ended ranks of a job, as the hook in their interpreters wrote them.

The files are the job's: they may hold anything, so they are bounded and checked. The hook is
`libs/job/stacks/sitecustomize.py`. Tests: tests/integration/test_diagnosis_endings.py.
"""

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from typing import Final

import msgspec

from libs.common.diagnosis.evidence import FRAMES_MAX, PROCESSES_MAX, TEXT_MAX, Ending, Frame
from libs.common.facts import UNDECODABLE
from libs.job.stacks import ENDING_PREFIX
from services.node_agent.diagnosis.rank_processes import RankProcess
from services.node_agent.directories.acting_as import acting_as

ENDING_BYTES: Final = 32 << 10
NUMBER_MAX: Final = 2**63 - 1
READ_FLAGS: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Written(msgspec.Struct, frozen=True):
    """The content of such a file. `world` is the number of ranks that the program knew."""

    world: int
    at_ns: int
    error: str
    stack: tuple[Frame, ...] = ()


_written = msgspec.json.Decoder(Written)


def endings(
    folder: str,
    ranks: Sequence[RankProcess],
    ids: Sequence[int],
    gone: Collection[int] = (),
) -> tuple[Ending, ...]:
    """Return the endings of this node's ranks that are not among `ranks`, or whose processes, by
    their ids, are `gone`.
    """
    world = max((one.world for one in ranks), default=0)
    try:
        with acting_as(ids):
            found = [
                (rank, _read(f"{folder}/{ENDING_PREFIX}{rank}")) for rank in _missing(ranks, gone)
            ]
    except OSError:
        return ()
    return tuple(
        _bounded(rank, one) for rank, one in found if one is not None and one.world == world
    )


def _bounded(rank: int, one: Written) -> Ending:
    stack = tuple(
        Frame(
            frame.function[:TEXT_MAX], frame.file[-TEXT_MAX:], min(max(0, frame.line), NUMBER_MAX)
        )
        for frame in one.stack[:FRAMES_MAX]
    )
    return Ending(rank, min(max(0, one.at_ns), NUMBER_MAX), one.error[:TEXT_MAX], stack)


def _missing(ranks: Sequence[RankProcess], gone: Collection[int]) -> Iterable[int]:
    """Return the ranks of this node without a process. Launchers number them one after another."""
    known = [one for one in ranks if 0 <= one.local_rank < one.local_world <= PROCESSES_MAX]
    if not known:
        return ()
    living = {one.rank for one in ranks if one.pid not in gone}
    first = known[0].rank - known[0].local_rank
    return set(range(first, first + known[0].local_world)) - living


def _read(path: str) -> Written | None:
    try:
        descriptor = os.open(path, READ_FLAGS)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return _written.decode(os.read(descriptor, ENDING_BYTES))
    except (OSError, *UNDECODABLE):
        return None
    finally:
        os.close(descriptor)
