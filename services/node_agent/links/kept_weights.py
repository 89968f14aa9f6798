"""Kept weights of this node, as other nodes of the same request read them.

Only files that the agent itself has filled and listed are read, by their listed names. The grant
ends with the entry: each part is checked against what the scheduler wants here now. Tests:
tests/attack/test_kept_weights.py.
"""

import os
from collections.abc import Callable
from typing import Final

from libs.common.life import kept_life
from libs.common.messages.file_messages import (
    FILE,
    MISSING,
    OUTSIDE,
    PART_BYTES,
    UNREADABLE,
    FilePart,
)
from libs.common.messages.link_messages import LinkAsk
from libs.common.state.kept import kept_key
from services.node_agent.core.keeping import Keeps
from services.node_agent.jobs.files import FLAGS, Fault
from services.node_agent.resident.weights import Filled, HostWeights

SHOWN_MAX: Final = 128


class KeptWeights:
    """The weights in this node's memory; `keeps` returns what is wanted here now."""

    def __init__(self, node_id: str, weights: HostWeights, keeps: Callable[[], Keeps]) -> None:
        self.node_id, self.weights, self.keeps = node_id, weights, keeps

    def check(self, ask: LinkAsk) -> None:
        """Raise Fault unless this node keeps the weights of that request for that tenant."""
        self._filled(ask)

    def part(self, ask: LinkAsk, path: bytes, offset: int) -> FilePart:
        """Return one part of a file of the granted weights, or the fault."""
        try:
            return self._read(self._filled(ask), path, offset)
        except Fault as fault:
            return FilePart(fault=fault.word, text=str(fault))
        except OSError as error:
            text = f"{_shown(path)} cannot be read: {error.strerror}"
            return FilePart(fault=UNREADABLE, text=text)

    def _filled(self, ask: LinkAsk) -> Filled:
        order = self.keeps().wanted.get(kept_key(ask.model, kept_life.HOST))
        found = self.weights.known.get((ask.tenant, ask.model))
        if (
            found is None
            or order is None
            or (order.tenant, order.request, found.request)
            != (ask.tenant, ask.request, ask.request)
        ):
            raise Fault(
                MISSING,
                f"node {self.node_id} keeps no weights of model {ask.model[:64]!r} for request "
                f"{ask.request} of tenant {ask.tenant[:64]!r}",
            )
        return found

    def _read(self, filled: Filled, path: bytes, offset: int) -> FilePart:
        name = os.fsdecode(path)
        if name not in filled.files:
            raise Fault(OUTSIDE, f"{_shown(path)} is not one of the kept files")
        descriptor = os.open(self.weights.root / filled.name / name, FLAGS)
        try:
            status = os.fstat(descriptor)
            return FilePart(
                kind=FILE,
                size_bytes=status.st_size,
                identity=f"{status.st_dev}.{status.st_ino}",
                data=os.pread(descriptor, PART_BYTES, offset),
            )
        finally:
            os.close(descriptor)


def _shown(path: bytes) -> str:
    return path[:SHOWN_MAX].decode("utf-8", "backslashreplace")
