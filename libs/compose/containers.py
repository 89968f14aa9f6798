"""Which containers the cluster has, and which of the authority's files each is given: nothing that
is another's.

Pure.

deploy/docker-compose.yml has the same names; tests/unit/test_compose_provision.py holds the two
together.
"""

from typing import Final

import msgspec

from libs.embedded import permissions
from libs.embedded.permissions import Fleet

AUTHORITY: Final = "authority"
SERVERS: Final = ("nats-1", "nats-2", "nats-3")
POSTGRES: Final = "postgres"
CLI: Final = "cli"
# The last two are in profiles of their names: the machine's own devices.
FLEET: Final = Fleet(
    nodes=("node-1", "node-2", "node-3", "node-4", "nvidia", "amd"), gateways=("a", "b")
)
CLIENT_PORT: Final = 4222
ROUTE_PORT: Final = 6222
MONITOR_PORT: Final = 8222
GATEWAY_URL: Final = "http://gateway:8080"
# The user of the image, and PostgreSQL's in its own.
MUSTER_UID: Final = 10_001
POSTGRES_UID: Final = 999
# Where a container sees its volume, and where in it that lies which it was given.
STATE: Final = "/state"
IDENTITY: Final = "identity"

AUTHORITY_FILE: Final = "authority.pem"
API_KEYS: Final = "api_keys"
PASSWORD: Final = "password"
PGPASS: Final = "pgpass"
VAULT_KEY: Final = "vault.key"
# Who signs the heads of the audit's chain.
HEADS: Final = "audit-heads"
# What the gateways show to machines that join: one name, whichever of them answers.
GATEWAY: Final = "gateway"


class Given(msgspec.Struct, frozen=True):
    """One container's volume: files in its `identity` folder, by the name that each has there ->
    the name in the authority's folder.
    """

    container: str
    files: dict[str, str]
    uid: int = MUSTER_UID


def given() -> list[Given]:
    """Every container that is given something, by name."""
    found = [
        Given(name, _served(name) | {"nkey.seed": _seed(permissions.KEEPER)}) for name in SERVERS
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
    """Return the files of every client.

    The trimmer's public key is no secret: clients check snapshots with it.
    """
    return {
        AUTHORITY_FILE: AUTHORITY_FILE,
        "nkey.seed": _seed(process),
        "trimmer.pub": f"keys/{permissions.TRIMMER}.pub",
    }


def _seed(process: str) -> str:
    return f"keys/{process}.seed"
