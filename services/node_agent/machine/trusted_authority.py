"""Takes a new certificate authority of the cluster into the file that this agent trusts.

An operator introduces it (`libs/embedded/renewal.py`). The agent accepts it only if one that it
trusts has signed it (`libs/common/safety/authorities.py`), and answers when the file is on disk.
Tests: tests/integration/test_certificate_renewal.py.
"""

import asyncio
import logging
from pathlib import Path

import msgspec

from libs.common.errors import Refused
from libs.common.model import NodeId
from libs.common.safety.following import Introduced, Introduction
from libs.common.settings.settings import Settings
from libs.common.subjects import ask_node
from libs.common.transport.bus import Bus
from services.node_agent.machine import synced_file

logger = logging.getLogger(__name__)
_decoder = msgspec.msgpack.Decoder(Introduction)
_encode = msgspec.msgpack.Encoder().encode


def trusted_by(settings: Settings) -> "TrustedAuthority | None":
    """Return the file that this agent trusts; None for connections without TLS."""
    return TrustedAuthority(Path(settings.nats_ca_file)) if settings.nats_ca_file else None


async def listen(authority: "TrustedAuthority | None", bus: Bus, node_id: NodeId) -> None:
    """Take introductions for this node; without TLS there are none."""
    if authority is not None:
        await authority.listen(bus, node_id)


class TrustedAuthority:
    """The file of trusted authorities of one agent (MUSTER_NATS_CA_FILE)."""

    def __init__(self, file: Path) -> None:
        self.file = file

    async def listen(self, bus: Bus, node_id: NodeId) -> None:
        await bus.subscribe(ask_node(node_id, "authority"), self._on_ask)

    async def _on_ask(self, subject: str, data: bytes) -> bytes:
        try:
            await asyncio.to_thread(self._take, _decoder.decode(data))
        except (Refused, msgspec.DecodeError, OSError) as error:
            logger.warning("a new authority of the cluster is not trusted: %s", error)
            return _encode(Introduced(str(error)))
        return _encode(Introduced())

    def _take(self, offered: Introduction) -> None:
        from libs.common.safety import authorities  # at the first use: it takes long

        before = self.file.read_text()
        after = authorities.extended(before, offered)
        if after != before:
            synced_file.replace(self.file, after.encode())
            logger.info("this agent trusts the new authority of the cluster beside the old one")
