"""Other systems, started and stopped for one benchmark and measured in turns with Muster.

`make bench NAME=throughput PEER=slurm` and the like. A peer that is not installed is skipped, with
a message that says how to get it.
"""

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Final

# The peer that the benchmark is to measure beside Muster; empty: none.
PEER: Final = os.environ.get("PEER", "")


class Missing(Exception):
    """A peer cannot run here; the text says why, and how to get it."""


def wants(*names: str) -> bool:
    """Return whether one of these is to be measured. Exits for a peer that the bench has not."""
    if PEER and PEER not in names:
        sys.exit(f"this benchmark has no peer {PEER!r}: give PEER={' or PEER='.join(names)}")
    return bool(PEER)


def need(programs: Sequence[str], how: str) -> None:
    """Raise Missing if one of these programs is not installed; `how` says how to get them."""
    lacking = [name for name in programs if shutil.which(name) is None]
    if lacking:
        raise Missing(f"{', '.join(lacking)} not found: {how}")
