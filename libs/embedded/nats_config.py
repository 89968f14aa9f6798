"""The nats-server's configuration: every acknowledged message on disk, one user per process with
the lists of `permissions.py`, and no way in without an nkey.

Loopback only, unless it is told another address: then TLS from the first byte, for everyone.

Pure: text out. The file is JSON, which the server reads as its own format. `sync_interval: always`
is not negotiable: with the default a power cut loses acknowledged facts.
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
# Room beside the log for buckets and snapshots.
BESIDE_LOG_BYTES: Final = 8 << 30
# Messages that wait to be stored in one stream. A writer has one under way, so these are more than
# there are writers; a flood leaves no more behind, which all others wait for.
BUFFERED_MESSAGES_MAX: Final = 4_096
# A handshake between servers that share a busy machine.
TLS_S: Final = 5

Block = dict[str, object]


class Peers(msgspec.Struct, frozen=True):
    """Where the servers of a cluster find each other ("host:port"), one each server, and the
    password between them.
    """

    addresses: tuple[str, ...]
    password: str


class Server(msgspec.Struct, frozen=True):
    """One server.

    `peers` None is a server alone; `route_address` is its own among theirs. `certificate`, `key`
    and their `authority` are files, for clients and for other servers alike; without them there is
    no TLS. `monitor_port` answers /healthz, on loopback.
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
    """The joined nodes that a server of this fleet may accept, and the others with the reason."""
    return usable(found, _staying(fleet, found), public_keys.values())


def config(server: Server, fleet: Fleet, public_keys: Mapping[str, str], found: Admitted) -> str:
    """The text of the server's file: the processes of `fleet`, with these nodes beside them and
    without those that were removed.

    A joined node whose row is bad is left out.
    """
    joined = accepted(fleet, public_keys, found)[0].nodes
    keys = {
        **public_keys,
        **{permissions.node_name(node_id): key for node_id, key in joined.items()},
    }
    return render(
        server,
        msgspec.structs.replace(fleet, nodes=_staying(fleet, found), joined=tuple(joined)),
        keys,
    )


def _staying(fleet: Fleet, found: Admitted) -> tuple[str, ...]:
    return tuple(node_id for node_id in fleet.nodes if node_id not in found.refused)


def render(server: Server, fleet: Fleet, public_keys: Mapping[str, str]) -> str:
    """The file's text; it may hold the routes' password, so it belongs into a file of mode 0600."""
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
    """CORE with JetStream; in an isolated fleet, one account per node beside it."""
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
        {"service": _of(_account(node_id), each)}
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
        "imports": [{"service": _of(CORE_ACCOUNT, each)} for each in crossing.asks]
        + [{"stream": _of(CORE_ACCOUNT, each)} for each in crossing.told],
        "exports": [{"service": each, "accounts": [CORE_ACCOUNT]} for each in crossing.answers],
    }


def _account(node_id: str) -> str:
    return f"NODE_{node_id}"


def _of(account: str, subject: str) -> Block:
    return {"account": account, "subject": subject}


def _user(public_key: str, allowed: Allowed) -> Block:
    lists: Block = {
        "publish": {"allow": list(allowed.publish)},
        "subscribe": {"allow": list(allowed.subscribe)},
    }
    return {"nkey": public_key, "permissions": lists}


def _cluster(server: Server, peers: Peers) -> Block:
    """Routes carry everything of every account: they need a password even on loopback, and
    certificates of both sides elsewhere.

    Clients know all servers by name, as their certificates do; they are told no addresses.
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
