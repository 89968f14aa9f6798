"""The containers of the docker compose cluster, and the files that each gets from the authority.

Pure. No container gets another's files. deploy/docker-compose.yml uses the same names;
tests/unit/test_compose_provision.py compares them.
"""

from typing import Final

import msgspec

from libs.embedded import permissions
from libs.embedded.permissions import Fleet

AUTHORITY: Final = "authority"
SERVERS: Final = ("nats-1", "nats-2", "nats-3")
# Two more, in a compose profile of their own: `muster bus add` then stores the log on all five.
MORE_SERVERS: Final = ("nats-4", "nats-5")
ALL_SERVERS: Final = (*SERVERS, *MORE_SERVERS)
POSTGRES: Final = "postgres"
CLI: Final = "cli"
# The last two are in compose profiles of the same names: they use the machine's own devices.
FLEET: Final = Fleet(
    nodes=("node-1", "node-2", "node-3", "node-4", "nvidia", "amd"), gateways=("a", "b")
)
CLIENT_PORT: Final = 4222
ROUTE_PORT: Final = 6222
MONITOR_PORT: Final = 8222
GATEWAY_URL: Final = "http://gateway:8080"
# User ids in Muster's image and in PostgreSQL's.
MUSTER_UID: Final = 10_001
POSTGRES_UID: Final = 999
# The mount point of a container's volume, and the folder in it that holds the container's files.
STATE: Final = "/state"
IDENTITY: Final = "identity"

AUTHORITY_FILE: Final = "authority.pem"
API_KEYS: Final = "api_keys"
PASSWORD: Final = "password"
PGPASS: Final = "pgpass"
VAULT_KEY: Final = "vault.key"
# The key that signs heads of the audit chain.
HEADS: Final = "audit-heads"
# The name in the gateways' certificate. All gateways show the same one to machines that join.
GATEWAY: Final = "gateway"


class Given(msgspec.Struct, frozen=True):
    """The files of one container: name in its `identity` folder -> name in the authority's."""

    container: str
    files: dict[str, str]
    uid: int = MUSTER_UID


def given() -> list[Given]:
    """Return all containers that get files."""
    found = [
        Given(name, _served(name) | {"nkey.seed": _seed(permissions.KEEPER)})
        for name in ALL_SERVERS
    ]
    found.append(Given(POSTGRES, _served(POSTGRES) | {PASSWORD: PASSWORD}, POSTGRES_UID))
    found += [Given(f"scheduler-{which}", _client("scheduler")) for which in "ab"]
    found.append(Given("quota", _client("quota")))
    own = {"trimmer.seed": _seed(permissions.TRIMMER), "heads.seed": _seed(HEADS), PGPASS: PGPASS}
    found.append(Given("audit", _client(permissions.AUDIT) | own))
    outside = _served(GATEWAY) | {API_KEYS: f"keys/{API_KEYS}", VAULT_KEY: f"keys/{VAULT_KEY}"}
    found += [
        Given(name, _client(name) | outside)
        for name in map(permissions.gateway_name, FLEET.gateways)
    ]
    found += [Given(node_id, _client(permissions.node_name(node_id))) for node_id in FLEET.nodes]
    return found


def _served(name: str) -> dict[str, str]:
    return {
        AUTHORITY_FILE: AUTHORITY_FILE,
        "server.pem": f"{name}.pem",
        "server.key": f"{name}.key",
    }


def _client(process: str) -> dict[str, str]:
    """Return the files of a client of the NATS servers.

    Clients verify snapshots with the trimmer's public key.
    """
    return {
        AUTHORITY_FILE: AUTHORITY_FILE,
        "nkey.seed": _seed(process),
        "trimmer.pub": f"keys/{permissions.TRIMMER}.pub",
    }


def _seed(process: str) -> str:
    return f"keys/{process}.seed"
