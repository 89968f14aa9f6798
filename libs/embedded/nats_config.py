"""The configuration of a nats-server, as text.

Pure. Every acknowledged message is on disk: with the server's default instead of `sync_interval:
always` a power cut loses acknowledged facts. Each process is a user with an nkey and the lists of
`permissions.py`. The server listens on loopback; on another address every connection uses TLS from
the first byte. The file is JSON, which the server's format includes.
"""

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from libs.common.messages.admission import Admitted, usable
from libs.common.transport.bus import MESSAGE_BYTES_MAX
from libs.embedded import permissions
from libs.embedded.permissions import CORE_ACCOUNT, Allowed, Crossing, Fleet

LOOPBACK: Final = "127.0.0.1"
# Space for buckets and snapshots, beside the log.
BESIDE_LOG_BYTES: Final = 8 << 30
# Messages that wait to be stored in one stream. Each writer has one outstanding, so this is more
# than the number of writers. After a flood, all writers wait for no more messages than these.
BUFFERED_MESSAGES_MAX: Final = 4_096
# Servers ping each other at this interval, and close a route after more unanswered pings than
# these: until then they send a frozen server requests that another process could answer.
ROUTE_PING: Final = "2s"
ROUTE_PINGS_UNANSWERED_MAX: Final = 2
# Time for a TLS handshake between servers on one busy machine.
TLS_S: Final = 5

Block = dict[str, object]


class Peers(msgspec.Struct, frozen=True):
    """The addresses of a cluster's servers ("host:port"), and the password between them."""

    addresses: tuple[str, ...]
    password: str


class Server(msgspec.Struct, frozen=True):
    """One server.

    `peers` None: the server is alone. `route_address` is its own address among those of the peers.
    `certificate`, `key` and `authority` are files, for clients and other servers; without them
    there is no TLS. `monitor_port` answers /healthz on loopback; 0: none.
    """

    name: str
    port: int
    store: str
    log_bytes: int
    peers: Peers | None = None
    route_address: str = ""
    listen: str = LOOPBACK
    certificate: str = ""
    key: str = ""
    authority: str = ""
    monitor_port: int = 0


def accepted(
    fleet: Fleet, public_keys: Mapping[str, str], found: Admitted
) -> tuple[Admitted, dict[str, str]]:
    """Return the joined nodes that a server of this fleet may accept, and the others with why."""
    return usable(found, _kept_nodes(fleet, found), public_keys.values())


def config(server: Server, fleet: Fleet, public_keys: Mapping[str, str], found: Admitted) -> str:
    """Return the text of the server's file: the processes of `fleet` and the joined nodes.

    Removed nodes, and joined nodes with invalid rows, are left out.
    """
    joined = accepted(fleet, public_keys, found)[0].nodes
    keys = {
        **public_keys,
        **{permissions.node_name(node_id): key for node_id, key in joined.items()},
    }
    return render(
        server,
        msgspec.structs.replace(fleet, nodes=_kept_nodes(fleet, found), joined=tuple(joined)),
        keys,
    )


def _kept_nodes(fleet: Fleet, found: Admitted) -> tuple[str, ...]:
    return tuple(node_id for node_id in fleet.nodes if node_id not in found.refused)


def render(server: Server, fleet: Fleet, public_keys: Mapping[str, str]) -> str:
    """Return the file's text. It may hold the password of the routes: use a file of mode 0600."""
    config: Block = {
        "server_name": server.name,
        "host": server.listen,
        "port": server.port,
        "max_payload": MESSAGE_BYTES_MAX,
        "jetstream": {
            "store_dir": server.store,
            "sync_interval": "always",
            "max_file": server.log_bytes + BESIDE_LOG_BYTES,
            "max_buffered_msgs": BUFFERED_MESSAGES_MAX,
        },
        "accounts": accounts(fleet, public_keys),
    }
    if server.peers is not None:
        config["cluster"] = _cluster(server, server.peers)
    if server.certificate:
        config["tls"] = _tls(server) | {"handshake_first": True}
    if server.monitor_port:
        config["http"] = f"{LOOPBACK}:{server.monitor_port}"
    return json.dumps(config, indent=1, ensure_ascii=False)  # nats-server knows no \\u escapes


def accounts(fleet: Fleet, public_keys: Mapping[str, str]) -> Block:
    """Return the accounts: CORE with JetStream, and in an isolated fleet one more per node."""
    users = [_user(public_keys[name], allowed) for name, allowed in permissions.core(fleet).items()]
    core: Block = {"jetstream": "enabled", "users": users}
    if not fleet.isolated:
        return {CORE_ACCOUNT: core}
    offered = permissions.core_exports()
    core["exports"] = [{"service": each} for each in offered.asks] + [
        {"stream": each} for each in offered.told
    ]
    crossings = {node_id: permissions.node_crossing(node_id) for node_id in fleet.all_nodes}
    core["imports"] = [
        {"service": _from_account(_account(node_id), each)}
        for node_id, crossing in crossings.items()
        for each in crossing.answers
    ]
    users_of = {
        node_id: _user(
            public_keys[permissions.node_name(node_id)], permissions.node(node_id, fleet)
        )
        for node_id in fleet.all_nodes
    }
    found: Block = {CORE_ACCOUNT: core}
    found |= {
        _account(node_id): _node(crossings[node_id], users_of[node_id])
        for node_id in fleet.all_nodes
    }
    return found


def _node(crossing: Crossing, user: Block) -> Block:
    return {
        "users": [user],
        "imports": [{"service": _from_account(CORE_ACCOUNT, each)} for each in crossing.asks]
        + [{"stream": _from_account(CORE_ACCOUNT, each)} for each in crossing.told],
        "exports": [{"service": each, "accounts": [CORE_ACCOUNT]} for each in crossing.answers],
    }


def _account(node_id: str) -> str:
    return f"NODE_{node_id}"


def _from_account(account: str, subject: str) -> Block:
    return {"account": account, "subject": subject}


def _user(public_key: str, allowed: Allowed) -> Block:
    lists: Block = {
        "publish": {"allow": list(allowed.publish)},
        "subscribe": {"allow": list(allowed.subscribe)},
    }
    return {"nkey": public_key, "permissions": lists}


def _cluster(server: Server, peers: Peers) -> Block:
    """Return the settings of the routes between servers.

    Routes carry the messages of all accounts, so they need a password even on loopback, and
    certificates of both sides elsewhere. Servers do not advertise addresses: clients know all
    servers by name, as the certificates do.
    """
    routes = [
        f"nats://route:{peers.password}@{each}"
        for each in peers.addresses
        if each != server.route_address
    ]
    authorization: Block = {"user": "route", "password": peers.password}
    listen = f"{server.listen}:{server.route_address.rpartition(':')[2]}"
    found: Block = {
        "name": "muster",
        "listen": listen,
        "no_advertise": True,
        "ping_interval": ROUTE_PING,
        "ping_max": ROUTE_PINGS_UNANSWERED_MAX,
        "authorization": authorization,
        "routes": routes,
    }
    return (
        found | {"tls": _tls(server) | {"ca_file": server.authority, "verify": True}}
        if server.authority
        else found
    )


def _tls(server: Server) -> Block:
    return {"cert_file": server.certificate, "key_file": server.key, "timeout": TLS_S}
