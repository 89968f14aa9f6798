"""Planted bugs, as `planted.py`: each believes a node more than its key is worth."""

from typing import Any

import pytest

from libs.common import facts as f
from libs.common import reading
from libs.common.cluster import WriterMark
from libs.common.facts import Commit
from libs.common.messages.senders import Senders


def untrusted_commits_stop_readers(patch: pytest.MonkeyPatch) -> None:
    """Once real: a node's commit that cannot be read ends whoever reads it."""

    def trusting(writers: dict[str, WriterMark], subject: str, data: bytes) -> Commit:
        return f.decode(data)

    patch.setattr(reading, "read", trusting)


def heartbeats_are_believed(patch: pytest.MonkeyPatch) -> None:
    """Once real: a heartbeat is of the node that its body names, on whatever subject it came."""

    def trusting(self: Senders, decoder: Any, subject: str, data: bytes) -> Any:
        return decoder.decode(data)

    patch.setattr(Senders, "read", trusting)
