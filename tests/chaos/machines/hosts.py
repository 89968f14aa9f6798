"""A real cluster whose processes run on hosts of their own: three nats-servers with a disk each,
two schedulers, quotas, audits and gateways, and four agents.

The programs, keys and settings are those of deploy/docker-compose.yml; a process that ends is
started again, as Docker does. All processes end with this one.
"""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from libs.common.safety.following import TLS_NAME
from libs.compose import containers as c
from libs.compose.server import TOLD, ServerIdentity
from libs.embedded import certificates, identity, nats_config, permissions, plan
from libs.embedded.processes import Child, Spec
from tests.chaos.machines.disks import Disk
from tests.chaos.machines.network import Network

SERVERS: Final = c.SERVERS
SCHEDULERS: Final = ("scheduler-a", "scheduler-b")
QUOTAS: Final = ("quota", "quota-b")
AUDITS: Final = ("audit", "audit-b")
GATEWAYS: Final = ("gateway-a", "gateway-b")
NODES: Final = ("node-1", "node-2", "node-3", "node-4")
SERVICES: Final = (*SCHEDULERS, *QUOTAS, *AUDITS, *GATEWAYS)
GPUS: Final = 4
GATEWAY_PORT: Final = 8080
DISK_BYTES: Final = 1 << 30
LOG_BYTES: Final = 256 << 20
READY_S: Final = 90.0
STOP_S: Final = 20.0
ASK_S: Final = 15.0
AGAIN_S: Final = 0.2
# The first process of a nats container, on another folder than a container's.
SERVER: Final = "import sys; from libs.compose.server import main; main(sys.argv[1])"
MODULES: Final = {
    "scheduler": "services.scheduler",
    "quota": "services.quota",
    "audit": "services.audit",
    "gateway": "services.api_gateway",
    "node": "services.node_agent",
}


NATS: Final = "nats-server"


class Hosts:
    """`children` are the processes by host; `urls` are the gateways'.

    `given_up` names the processes that asked for a person.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.keys = folder / "keys"
        self.lives = folder / "lives"
        self.network = Network((*SERVERS, *SERVICES, *NODES))
        self.disks = {name: Disk(folder / "disks", name, DISK_BYTES) for name in SERVERS}
        self.children: dict[str, Child] = {}
        self.keeping: list[asyncio.Task[None]] = []
        self.key = ""

    @property
    def urls(self) -> dict[str, str]:
        return {name: f"http://{self.network.address[name]}:{GATEWAY_PORT}" for name in GATEWAYS}

    @property
    def given_up(self) -> list[str]:
        return [name for name, child in self.children.items() if child.given_up]

    def first_pid(self, name: str) -> int | None:
        """Return the first process of a host. None if it does not run."""
        child = self.children[name]
        return child.process.pid if child.process is not None and child.living else None

    def pid(self, name: str) -> int | None:
        """Return the process of a host; of a server's the nats-server. None if it does not run."""
        first = self.first_pid(name)
        if first is None or name not in SERVERS:
            return first
        try:
            path = f"/proc/{first}/task/{first}/children"
            found = Path(path).read_text().split()
            named = [each for each in found if _name_of(each) == NATS]
        except OSError:
            return None
        return int(named[0]) if named else None

    def environment(self, name: str) -> dict[str, str]:
        """Return the settings of a process, as its container has them."""
        kind = _kind(name)
        shared = kind if name in (*QUOTAS, *AUDITS) else name
        own = self.folder / "volumes" / shared
        own.mkdir(parents=True, exist_ok=True)
        process = kind if name in (*SCHEDULERS, *QUOTAS, *AUDITS) else name
        process = permissions.node_name(name) if name in NODES else process
        told = {
            "NATS": ",".join(f"nats://{self.network.address[each]}:4222" for each in SERVERS),
            "NATS_CA_FILE": str(certificates.certificate_file(self.keys, c.AUTHORITY)),
            "NKEY_SEED_FILE": str(identity.seed_file(self.keys, process)),
            "TRIMMER_KEY_FILE": str(identity.public_file(self.keys, permissions.TRIMMER)),
            "STREAM_REPLICAS": "3",
            "STREAM_BYTES": str(LOG_BYTES),
            "CLUSTER_ID": "chaos",
            "STATE": str(own),
            **self._of_kind(name),
        }
        inherited = {each: os.environ[each] for each in plan.PASSED_ON if each in os.environ}
        return inherited | plan.ALONE | {f"MUSTER_{key}": value for key, value in told.items()}

    def _of_kind(self, name: str) -> dict[str, str]:
        instance = "b" if name.endswith("-b") else "a"
        if name in (*SCHEDULERS, *QUOTAS):
            return {"INSTANCE": instance}
        if name in GATEWAYS:
            return {
                "INSTANCE": instance,
                "GATEWAY_HOST": self.network.address[name],
                "GATEWAY_PORT": str(GATEWAY_PORT),
                "API_KEYS_FILE": str(identity.api_keys_file(self.keys)),
                "VAULT_KEY_FILE": str(identity.vault_key_file(self.keys)),
            }
        if name in AUDITS:
            return {
                "INSTANCE": instance,
                "TRIMMER_SEED_FILE": str(identity.seed_file(self.keys, permissions.TRIMMER)),
                "AUDIT_KEY_FILE": str(identity.seed_file(self.keys, c.HEADS)),
                "AUDIT_STREAM_BYTES": str(LOG_BYTES // 4),
            }
        if name in NODES:
            return {
                "NODE_ID": name,
                "NODE_ADDRESS": self.network.address[name],
                "SIMULATED_GPUS": str(GPUS),
                "JOB_USERS": "*=self",
                "METRICS_PORT": "0",
            }
        return {}

    def provision(self) -> None:
        """Create folders, keys and disks."""
        (self.folder / "logs").mkdir(parents=True)
        public = {each: identity.public_key(self.keys, each) for each in permissions.names(c.FLEET)}
        identity.public_file(self.keys, permissions.TRIMMER)
        identity.public_key(self.keys, c.HEADS)
        identity.vault_key_file(self.keys)
        certificates.authority(self.keys, c.AUTHORITY)
        certificates.server(self.keys, "nats", c.AUTHORITY, [TLS_NAME])
        self.key = identity.api_key(self.keys, "")
        password = secrets.token_hex(16)
        for name in SERVERS:
            files = self._server_files(name, password, public)
            self.disks[name].make({f"{c.IDENTITY}/{key}": text for key, text in files.items()})

    def _server_files(self, name: str, password: str, public: dict[str, str]) -> dict[str, str]:
        """Return the files in the `identity` folder of a server's disk."""
        routes = {each: f"{self.network.address[each]}:{c.ROUTE_PORT}" for each in SERVERS}
        server = nats_config.Server(
            name=name,
            port=c.CLIENT_PORT,
            store=str(self.disks[name].place / "jetstream"),
            log_bytes=LOG_BYTES,
            peers=nats_config.Peers(tuple(routes.values()), password),
            route_address=routes[name],
            listen="0.0.0.0",  # nosec B104
            certificate=str(certificates.certificate_file(self.keys, "nats")),
            key=str(certificates.key_file(self.keys, "nats")),
            monitor_port=c.MONITOR_PORT,
        )
        authority = certificates.certificate_file(self.keys, c.AUTHORITY)
        return {
            TOLD: msgspec.json.encode(ServerIdentity(server, public)).decode(),
            "nkey.seed": identity.seed_file(self.keys, permissions.KEEPER).read_text(),
            c.AUTHORITY_FILE: authority.read_text(),
        }

    def start(self, name: str) -> None:
        """Start the process of a host, and start it again whenever it ends."""
        if name in SERVERS:
            disk = self.disks[name]
            command = disk.command(sys.executable, "-c", SERVER, str(disk.place))
            environment = {
                each: os.environ[each] for each in plan.PASSED_ON if each in os.environ
            } | plan.ALONE
        else:
            module = MODULES[_kind(name)]
            command, environment = [sys.executable, "-m", module], self.environment(name)
        log = self.folder / "logs" / f"{name}.log"
        spec = Spec(name, [*self.network.inside(name), *command], environment, log)
        self.children[name] = Child(spec, self._say, lambda: None)
        self.keeping.append(asyncio.create_task(self.children[name].keep(), name=name))

    def _say(self, text: str) -> None:
        with (self.folder / "logs" / "restarts.log").open("a") as file:
            file.write(f"{time.monotonic_ns()} {text}\n")

    async def stop(self) -> None:
        """End all processes, the servers last."""
        for names in (SERVICES, NODES, SERVERS):
            ending = [self.children[name].end(STOP_S) for name in names if name in self.children]
            await asyncio.gather(*ending)
        await asyncio.gather(*self.keeping)


def _kind(name: str) -> str:
    return name.partition("-")[0]


def _name_of(pid: str) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Hosts]:
    """A cluster whose every node is healthy, removed with the block."""
    hosts = Hosts(folder)
    try:
        await asyncio.to_thread(hosts.network.open)
        await asyncio.to_thread(hosts.provision)
        for name in (*SERVERS, *SERVICES, *NODES):
            hosts.start(name)
        async with session(hosts) as asking:
            await healthy(hosts, asking)
        yield hosts
    finally:
        await hosts.stop()
        hosts.network.close()


@asynccontextmanager
async def session(hosts: Hosts, key: str = "") -> AsyncIterator[aiohttp.ClientSession]:
    """A session with this API key, else the administrator's."""
    headers = {"Authorization": f"Bearer {key or hosts.key}"}
    timeout = aiohttp.ClientTimeout(total=ASK_S)
    async with aiohttp.ClientSession(headers=headers, timeout=timeout) as found:
        yield found


async def ask(asking: aiohttp.ClientSession, method: str, url: str, **more: Any) -> tuple[int, Any]:
    """Return status and body; status is 0 if the answer was lost."""
    try:
        async with asking.request(method, url, **more) as answer:
            return answer.status, await answer.json(content_type=None)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return 0, repr(error)


async def get(
    asking: aiohttp.ClientSession, url: str, within_s: float = READY_S, **query: str
) -> Any:
    """Return the body of a read, repeated until it is answered. Raises TimeoutError."""
    deadline = time.monotonic() + within_s
    status, body = 0, None
    while time.monotonic() < deadline:
        status, body = await ask(asking, "GET", url, params=query)
        if status == 200:
            return body
        await asyncio.sleep(AGAIN_S)
    raise TimeoutError(f"GET {url} was not answered within {within_s:.0f} s: {status} {body}")


async def healthy(hosts: Hosts, asking: aiohttp.ClientSession) -> None:
    """Wait until each gateway is ready and shows every node as healthy. Raises TimeoutError."""
    deadline = time.monotonic() + READY_S
    left: dict[str, object] = dict.fromkeys(hosts.urls, "not asked")
    while left and time.monotonic() < deadline:
        for name in list(left):
            left[name] = await _unready(hosts.urls[name], asking)
            if not left[name]:
                del left[name]
        await asyncio.sleep(AGAIN_S)
    if left:
        raise TimeoutError(f"not ready after {READY_S:.0f} s: {left}")


async def _unready(url: str, asking: aiohttp.ClientSession) -> object:
    status, said = await ask(asking, "GET", f"{url}/readyz")
    if status != 200:
        return said
    status, body = await ask(asking, "GET", f"{url}/v1/nodes")
    if status != 200:
        return body
    states: Mapping[str, str] = {each["id"]: each["state"] for each in body["nodes"]}
    return "" if states == dict.fromkeys(NODES, "healthy") else states
