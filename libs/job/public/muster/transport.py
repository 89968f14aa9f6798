"""Links between the processes of several nodes; docs/transport.md is for users."""

from libs.job.transport.access import Access, Refused, SharedKey
from libs.job.transport.errors import Cause, LinkError
from libs.job.transport.link import Link, LinkStats
from libs.job.transport.listening import Listener
from libs.job.transport.memory import Received, Region, RemoteRegion, allocate
from libs.job.transport.traffic import Options
from libs.job.transport.transports import RdmaTransport, TcpTransport, Transport, chosen

__all__ = [
    "Access",
    "Cause",
    "Link",
    "LinkError",
    "LinkStats",
    "Listener",
    "Options",
    "RdmaTransport",
    "Received",
    "Refused",
    "Region",
    "RemoteRegion",
    "SharedKey",
    "TcpTransport",
    "Transport",
    "allocate",
    "chosen",
]
