"""Planted bugs, like those of `planted.py`: each trusts a node beyond the rights of its key."""

from typing import Any

import pytest
from msgspec.structs import replace

from libs.common import bounds, reading
from libs.common import facts as f
from libs.common.facts import Commit
from libs.common.folds import claim_fold, job_fold
from libs.common.messages.senders import Senders
from libs.common.model import Gpu, NodeId
from libs.common.state.cluster import Cluster, GpuView, Node, WriterMark
from services.node_agent.peers.peer_messages import PeerAsk, Said, Signer


def untrusted_commits_stop_readers(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a node's unreadable commit ends every process that reads it."""

    def trusting(writers: dict[str, WriterMark], subject: str, data: bytes) -> Commit:
        return f.decode(data)

    patch.setattr(reading, "read", trusting)


def heartbeats_may_name_another_node(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a heartbeat counts for the node that its body names, whatever its subject."""

    def trusting(self: Senders, decoder: Any, subject: str, data: bytes) -> Any:
        return decoder.decode(data)

    patch.setattr(Senders, "read", trusting)


def a_device_goes_to_the_last_that_lists_it(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the last node that registers a UUID has the device."""

    def trusting(cluster: Cluster, node: Node, gpu: Gpu, birth: tuple[int, int]) -> list[NodeId]:
        view = cluster.gpus.setdefault(gpu.uuid, GpuView(node.node_id, gpu))
        before, view.gpu, view.node_id, view.present = view.node_id, gpu, node.node_id, True
        return [before]

    patch.setattr(claim_fold, "_claim", trusting)


def questions_name_no_recipient(patch: pytest.MonkeyPatch) -> None:
    """A former bug: a question that was sent to one peer is valid at every other peer."""

    def nameless(self: Signer, said: Said) -> bytes:
        return signed(self, replace(said, to=NodeId("")) if isinstance(said, PeerAsk) else said)

    signed = Signer.datagram
    patch.setattr(Signer, "datagram", nameless)


def numbers_are_believed(patch: pytest.MonkeyPatch) -> None:
    """A former bug: the run time of a job is whatever its node reports."""
    patch.setattr(bounds, "bounded", lambda fact: fact)
    patch.setattr(job_fold, "SPAN_MORE_MS", 1 << 70)
