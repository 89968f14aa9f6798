"""Reads the size of the log and the state of its servers from the stream's leader."""

from datetime import datetime
from typing import Any, Final

import msgspec
from nats.aio.client import Client
from nats.errors import Error as NatsError

from libs.common import subjects
from libs.common.errors import Unavailable
from libs.common.process.cancellation import heed
from libs.common.transport.connection_nats import ASK_TIMEOUT_S
from libs.common.transport.log_survey import LogSurvey, ServerSeen

INFO: Final = f"$JS.API.STREAM.INFO.{subjects.STREAM}"
NS: Final = 1_000_000_000
# A server that the leader has not heard for so long is offline. Servers themselves say so after two
# and a half minutes; a healthy one is heard every second.
SILENT_NS: Final = 10 * NS


async def survey(client: Client) -> LogSurvey:
    """Return the log's survey. nats-py's own type lacks the time of the oldest commit.

    Raises Unavailable.
    """
    try:
        answer = await client.request(INFO, b"", timeout=ASK_TIMEOUT_S)
    except (NatsError, TimeoutError, OSError) as error:
        raise Unavailable(
            f"the log does not answer ({error or 'timeout'}): is its leader up?"
        ) from error
    heed()
    found: dict[str, Any] = msgspec.json.decode(answer.data)
    if "state" not in found:
        raise Unavailable(f"the log does not answer: {found.get('error')}")
    state = found["state"]
    return LogSurvey(
        last=int(state["last_seq"]),
        commits=int(state["messages"]),
        bytes=int(state["bytes"]),
        bytes_max=max(0, int(found["config"].get("max_bytes") or 0)),
        first_ns=_ns(str(state.get("first_ts", ""))) if state["messages"] else 0,
        servers=_servers(found.get("cluster") or {}),
    )


def _ns(text: str) -> int:
    """Return a time of the server, which writes up to nine digits of a second."""
    whole, _, zone = text.partition(".")
    try:
        moment = datetime.fromisoformat(f"{whole.removesuffix('Z')}+00:00")
    except ValueError:
        return 0
    part = zone.rstrip("Z")
    return int(moment.timestamp()) * NS + int(part.ljust(9, "0")[:9] if part.isdigit() else 0)


def _servers(cluster: dict[str, Any]) -> tuple[ServerSeen, ...]:
    """Return the leader and the other replicas; one server alone has none of them."""
    leader = str(cluster.get("leader") or "")
    found = [
        ServerSeen(
            name=str(peer.get("name")),
            leads=False,
            current=bool(peer.get("current")),
            online=_is_heard(peer),
            lag=int(peer.get("lag") or 0),
        )
        for peer in cluster.get("replicas") or ()
    ]
    if leader:
        found.append(ServerSeen(name=leader, leads=True, current=True, online=True, lag=0))
    return tuple(sorted(found, key=lambda each: each.name))


def _is_heard(peer: dict[str, Any]) -> bool:
    """Return whether the leader hears this server. One that it never heard has no time since."""
    since_ns = int(peer.get("active") or 0)
    is_known = since_ns > 0 or bool(peer.get("current"))
    return is_known and since_ns < SILENT_NS and not peer.get("offline", False)
