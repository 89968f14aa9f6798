"""Opens the listener for links as the settings and the peers of this agent allow."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path

from libs.common.model import NodeId
from libs.common.settings.settings import Settings
from libs.common.transport.bus import Bus
from libs.common.transport.writer import Writer
from libs.job.transport.errors import LinkError
from services.node_agent.directories.job_directories import JobDirectories
from services.node_agent.fabric.choice import Choices
from services.node_agent.fabric.tokens import LinkKey
from services.node_agent.jobs.files import part_of
from services.node_agent.links.chosen import ChosenLinks
from services.node_agent.links.copies import Copies
from services.node_agent.links.kept_weights import KeptWeights
from services.node_agent.links.links import Links
from services.node_agent.links.members import Members
from services.node_agent.links.shared_uploads import SharedUploads
from services.node_agent.peers.peers import Peers
from services.node_agent.resident.from_peers import PeerWeights
from services.node_agent.resident.resident import Resident
from services.node_agent.uploads.cache import UploadCache
from services.node_agent.uploads.fetching import Uploads

logger = logging.getLogger(__name__)


def links_of(settings: Settings, jobs: JobDirectories, peers: Peers | None) -> Links | None:
    """Return the links of this agent; None without a key, a roster or an address of this node."""
    if settings.nkey_seed is None or peers is None:
        return None
    choices = Choices(settings.link_transport)
    key = LinkKey(NodeId(settings.node_id), settings.nkey_seed)
    members = Members(key.node_id, lambda: peers.gossip.roster, fetch_soon=peers.fetch_soon)
    try:
        links = Links(
            key=key,
            members=members,
            wall_ns=time.time_ns,
            tenant_of=jobs.tenant_of,
            part=lambda ask: part_of(settings.node_id, jobs.root_of, ask),
            host=settings.node_address,
            port=settings.link_port,
            bytes_per_s=settings.link_tenant_bytes_per_s,
            choices=choices,
        )
    except LinkError as error:
        logger.warning("%s: other nodes cannot open links to this one", error)
        return None
    links.copies = Copies(
        key=key,
        members=members,
        wall_ns=time.time_ns,
        tenant_of=jobs.tenant_of,
        root_of=jobs.root_of,
        choices=choices,
    )
    return links


def share_uploads(links: Links, settings: Settings, bus: Bus) -> Uploads | None:
    """Let other nodes read this one's uploads; return what fetches those of others.

    None if the settings leave no bytes for them.
    """
    if not settings.upload_cache_bytes:
        return None
    cache = UploadCache(Path(settings.state).resolve() / "uploads", settings.upload_cache_bytes)
    links.uploads = SharedUploads(links.key.node_id, cache)
    return Uploads(
        key=links.key,
        members=links.members,
        bus=bus,
        wall_ns=time.time_ns,
        cache=cache,
        bytes_max=settings.upload_bytes,
        choices=links.choices,
    )


def record_choices(links: Links, writer: Writer, incarnation: Callable[[], int]) -> None:
    """Record which transport the links to other nodes use."""
    loop = asyncio.get_running_loop()
    links.choices.chose = ChosenLinks(links.key.node_id, writer, incarnation, loop).note


def share_weights(links: Links, resident: Resident, bus: Bus) -> None:
    """Let other nodes read kept weights of this one, and this one fetch those of others."""
    links.weights = KeptWeights(links.key.node_id, resident.weights, lambda: resident.keeps())
    resident.peers = PeerWeights(
        key=links.key,
        members=links.members,
        bus=bus,
        wall_ns=time.time_ns,
        weights=resident.weights,
        choices=links.choices,
    )
