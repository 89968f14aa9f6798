"""Every alert fires from the metrics of a real cluster that is really broken, and clears when it is
repaired. Prometheus is a real one. Minutes: `make alerts`.
"""

import asyncio
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bench.cluster import running as servers_running
from libs.common import facts as f
from libs.common import subjects
from libs.common.transport.connection_nats import connect
from libs.embedded import identity, plan, servers, shape
from tests.board_queries import queries
from tests.drivers.conftest import fakes, libraries  # noqa: F401  fixtures
from tests.drivers.fakes import Fakes
from tests.integration.alerts_world import Alerts, World, alerts_world, names, short_rules
from tests.integration.test_agent_process import Cluster, cluster  # noqa: F401  the fixture
from tests.prometheus import binary, prometheus

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1_800)]

NODES, GPUS = 2, 64
# Each one is about eight commits, which processes that hang do not read.
JOBS: Final = 60
PAUSE_S: Final = 0.5
STOPPED_S: Final = 0.2
# A gateway reads its certificates once a minute.
CERTIFICATE_S: Final = 150.0
# The growth of a log is known when it is ten minutes old.
GROWTH_S: Final = 700.0
DISK: Final = "size=700m"
SMALL_BYTES: Final = 1 << 30
# What needs a card, MIG, or several servers of the log: tests/integration/test_board_queries.py.
NOT_HERE: Final = (
    "Profiling counters",
    "Fleet: MIG instances",
    "Fleet: Power",
    "Jobs: Energy",
    "Log and control plane: Servers of the log",
    "Log and control plane: Log full in",
    "Serving: Time to the first token",
    "Serving: Tokens per second",
    "Tenants: Tokens per second",
)
SETTINGS: Final = {
    "MUSTER_LEASE_MS": "6000",
    "MUSTER_HOLD_S": "20",
    "MUSTER_LOG_LEVEL": "WARNING",
}
SEEN: list[str] = []


def certificate(file: Path, days: int) -> None:
    """Write a certificate that ends in so many days."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "gateway")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=days))
        .sign(key, hashes.SHA256())
    )
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk of its own; a folder where none can be mounted."""
    place = tmp_path / "disk"
    place.mkdir()
    line = ["mount", "-t", "tmpfs", "-o", DISK, "tmpfs", str(place)]
    mounted = subprocess.run(line, check=False, capture_output=True).returncode == 0
    yield place
    if mounted:
        subprocess.run(["umount", "-l", str(place)], check=True)


async def certificates_end(world: World, file: Path) -> None:
    await world.alerts.fire("MusterCertificateEnds", within_s=CERTIFICATE_S)
    certificate(file, days=365)
    await world.alerts.clear("MusterCertificateEnds", within_s=CERTIFICATE_S)


async def devices_err_and_are_hot_or_idle(world: World) -> None:
    wanted = ("MusterGpuHot", "MusterGpuOutOfUse", "MusterGpuError", "MusterGpuIdle")
    idle = await world.submit("sleep", "600", gpus=1)
    part = await world.submit("sleep", "600", gpus=1, gpu_share=50)
    world.hears("node-1", "driver-events", "simulated 0000:02:00.0 reading 91 temperature_c")
    line = "3,1,1,-;NVRM: Xid (PCI:0000:03:00): 13, Graphics Exception"
    world.hears("node-1", "kernel-log", line)
    await world.alerts.fire(*wanted)
    world.hears("node-1", "driver-events", "simulated 0000:02:00.0 reading 40 temperature_c")
    await world.cancel(idle)
    await world.cancel(part)
    await world.alerts.clear(*wanted)


async def replicas_crash(world: World) -> None:
    wanted = ("MusterReplicaCrashLoop", "MusterModelUnavailable", "MusterRequestsFail")
    body = {"name": "m", "replicas": 1, "command": ["false"]}
    await world.ask("POST", "/v1/deployments", 201, json=body)
    asking = asyncio.create_task(ask_in_vain(world))
    try:
        await world.alerts.fire(*wanted)
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    await world.ask("DELETE", "/v1/deployments/m", 200, 202, 204)
    await world.alerts.clear(*wanted)


async def ask_in_vain(world: World) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    while True:
        await world.chaos.try_once("POST", "/v1/chat/completions", json=body)
        await asyncio.sleep(PAUSE_S / 5)


async def budgets_run_out(world: World) -> None:
    """An allocation that fits holds nearly all of a budget of one GPU hour until its end, and all
    devices for half a minute are more than that.
    """
    await world.ask("PUT", "/v1/tenants/default", 200, 201, json={"gpu_hours": 1})
    held = await world.ask("POST", "/v1/allocations", 201, json={"expires": 3_300, "gpus": 1})
    await world.alerts.fire("MusterBudgetLow")
    await world.ask("DELETE", f"/v1/allocations/{held['id']}", 200, 202)
    await world.alerts.clear("MusterBudgetLow")
    job = await world.submit("sleep", "35", gpus=GPUS, nodes=NODES)
    await world.alerts.fire("MusterBudgetExhausted", within_s=180.0)
    await world.ask("PUT", "/v1/tenants/default", 200, 201, json={"gpu_hours": 1_000})
    await world.alerts.clear("MusterBudgetExhausted")
    assert (await world.chaos.get(f"/v1/jobs/{job}"))["state"] == "completed"


async def ask_the_board(world: World, unanswered: dict[str, str]) -> None:
    """Ask every query of the board until it has returned data; remove it then."""
    while unanswered:
        for name, each in list(unanswered.items()):
            if await world.alerts.prometheus.query(each):
                del unanswered[name]
        await asyncio.sleep(PAUSE_S)


async def node_is_lost_again_and_again(world: World) -> None:
    wanted = ("MusterNodeUnreachable", "MusterLeaseLost", "MusterTargetDown")
    for _ in range(3):
        world.signal("node-2", signal.SIGSTOP)
        await until_node(world, "unreachable")
        if "MusterLeaseLost" not in world.alerts.fired:
            await world.alerts.fire(*wanted)
        world.signal("node-2", signal.SIGCONT)
        await until_node(world, "healthy")
        if "MusterLeaseLost" not in world.alerts.fired:
            await world.alerts.clear(*wanted)
    await world.alerts.fire("MusterNodeHeldBack")
    await world.alerts.clear("MusterNodeHeldBack")


async def until_node(world: World, state: str) -> None:
    async with asyncio.timeout(120.0):
        while True:
            nodes = (await world.chaos.get("/v1/nodes"))["nodes"]
            if [node["state"] for node in nodes if node["id"] == "node-2"] == [state]:
                return
            await asyncio.sleep(PAUSE_S)


async def processes_hang(world: World) -> None:
    wanted = ("MusterNoLeader", "MusterServiceLag")
    world.signal("audit", signal.SIGSTOP)
    await run_jobs(world)
    await world.alerts.fire(*wanted)
    world.signal("audit", signal.SIGCONT)
    await world.alerts.clear(*wanted)


async def gateway_is_too_slow(world: World) -> None:
    """The second gateway gets a tenth of a processor's time while many jobs run."""
    slowed = asyncio.create_task(slow_down(world, "gateway-b"))
    jobs = asyncio.create_task(run_jobs_on_and_on(world))
    try:
        await world.alerts.fire("MusterGatewayLag")
    finally:
        for task in (slowed, jobs):
            task.cancel()
        await asyncio.gather(slowed, jobs, return_exceptions=True)
        world.signal("gateway-b", signal.SIGCONT)
    await world.alerts.clear("MusterGatewayLag")


async def slow_down(world: World, name: str) -> None:
    while True:
        world.signal(name, signal.SIGSTOP)
        await asyncio.sleep(STOPPED_S)
        world.signal(name, signal.SIGCONT)
        await asyncio.sleep(STOPPED_S / 10)


async def run_jobs(world: World) -> None:
    await asyncio.gather(*(world.submit("true", gpus=0, cpus=1) for _ in range(JOBS)))


async def run_jobs_on_and_on(world: World) -> None:
    while True:
        await run_jobs(world)


async def disk_fills(world: World, place: Path) -> None:
    if shutil.disk_usage(place).total > SMALL_BYTES:
        print("MusterDiskFilling: no disk could be mounted here", flush=True)
        return
    free = shutil.disk_usage(place).free
    filler = place / "filler"
    with filler.open("wb") as file:
        for _ in range(int(free * 0.95) >> 20):
            file.write(bytes(1 << 20))
    await world.alerts.fire("MusterDiskFilling")
    filler.unlink()
    await world.alerts.clear("MusterDiskFilling")


async def log_fills(world: World, began: float) -> None:
    """The bound of the log is lowered below what it holds, as if that had grown."""
    found = shape.load(world.chaos.state)
    assert found is not None
    allow_updates(world)
    seed = identity.seed_file(world.chaos.state / "keys", "scheduler").read_bytes().strip()
    nats = await connect([found.nats], "scheduler", seed)
    stream = nats.jetstream(timeout=10)
    info = await stream.stream_info(subjects.STREAM)
    config, bound = info.config, info.config.max_bytes
    try:
        config.max_bytes = int(info.state.bytes / 0.88)
        await stream.update_stream(config)
        await world.alerts.fire("MusterLogFilling", "MusterLogNearlyFull")
        waited_s = time.monotonic() - began
        await world.alerts.fire("MusterLogFullSoon", within_s=max(60.0, GROWTH_S - waited_s))
        # A log of this cluster would fill its usual bound within days too: it has grown fast.
        config.max_bytes = -1
        await stream.update_stream(config)
        await world.alerts.clear("MusterLogFilling", "MusterLogNearlyFull", "MusterLogFullSoon")
    finally:
        config.max_bytes = bound
        await stream.update_stream(config)
        await nats.close()


def allow_updates(world: World) -> None:
    """Let the scheduler's key change the log's bound, which no process of a cluster may."""
    file = servers.config_file(world.chaos.state, plan.SERVER)
    may = f'"$JS.API.STREAM.CREATE.{subjects.STREAM}"'
    text = file.read_text()
    assert may in text
    file.write_text(text.replace(may, f"{may}, {may.replace('CREATE', 'UPDATE')}"))
    world.signal(plan.SERVER, signal.SIGHUP)


async def test_alerts_of_a_broken_cluster_fire_and_clear(disk: Path, tmp_path: Path) -> None:
    binary("prometheus")
    began = time.monotonic()
    file = disk / "gateway.pem"
    certificate(file, days=3)
    settings = {**SETTINGS, "MUSTER_GATEWAY_CERT_FILE": str(file)}
    async with alerts_world(tmp_path, disk / "cluster", NODES, GPUS, **settings) as world:
        unanswered = {
            name: each for name, each in queries().items() if not name.startswith(NOT_HERE)
        }
        asking = asyncio.create_task(ask_the_board(world, unanswered))
        await certificates_end(world, file)
        await devices_err_and_are_hot_or_idle(world)
        await replicas_crash(world)
        await budgets_run_out(world)
        await node_is_lost_again_and_again(world)
        await processes_hang(world)
        await gateway_is_too_slow(world)
        await disk_fills(world, disk)
        await log_fills(world, began)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert unanswered == {}
        assert await world.alerts.prometheus.firing() == set()
        SEEN.extend(world.alerts.fired)


async def test_device_that_does_not_answer_fires_an_alert_and_clears_it(
    cluster: Cluster,  # noqa: F811
    fakes: Fakes,  # noqa: F811
    tmp_path: Path,
) -> None:
    """NVIDIA's binding over a library whose second card falls off the bus, and comes back."""
    binary("prometheus")
    (port,) = servers.free_ports(1)
    fakes.tell("nvidia", "profiling * 1", "nvmlDeviceGetFieldValues * 3")
    cluster.agent(metrics_port=port, gpu_driver="local")
    await cluster.until(f.NodeRegistered)
    job = {"job_name": "muster-nodes", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    rules = [short_rules(tmp_path)]
    async with prometheus(tmp_path / "prometheus", [job], rules) as found:
        alerts = Alerts(found)
        async with asyncio.timeout(60.0):
            while not await found.query("muster_gpu_sm_active_ratio"):
                await asyncio.sleep(PAUSE_S)
        fakes.tell("nvidia", "* 1 15")
        await alerts.fire("MusterGpuSilent")
        fakes.tell("nvidia", "profiling * 1", "nvmlDeviceGetFieldValues * 3")
        await alerts.clear("MusterGpuSilent")
        SEEN.extend(alerts.fired)


async def test_server_of_the_log_that_is_killed_fires_an_alert_and_clears_it(
    tmp_path: Path,
) -> None:
    binary("prometheus")
    with servers_running(replicas=3, nodes=1, gpus=1, audit=False) as found_cluster:
        host = found_cluster.url.removeprefix("http://")
        job = {"job_name": "muster-gateways", "static_configs": [{"targets": [host]}]}
        rules = [short_rules(tmp_path)]
        async with prometheus(tmp_path / "prometheus", [job], rules) as found:
            alerts = Alerts(found)
            async with asyncio.timeout(120.0):
                while len(await found.query("muster_log_server_up == 1")) < 3:
                    await asyncio.sleep(PAUSE_S)
            os.kill(found_cluster.processes["nats-2"].pid, signal.SIGSTOP)
            await alerts.fire("MusterLogServerDown")
            os.kill(found_cluster.processes["nats-2"].pid, signal.SIGCONT)
            await alerts.clear("MusterLogServerDown")
            SEEN.extend(alerts.fired)


def test_every_alert_was_seen_to_fire_and_to_clear() -> None:
    """The last of this file: it counts what the others saw in this process."""
    if not SEEN:
        pytest.skip("the tests above were not run")
    assert sorted(set(names()) - set(SEEN)) == []
