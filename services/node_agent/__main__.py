"""`python -m services.node_agent`: run the agent of this machine, as MUSTER_* configures it."""

import asyncio
import logging
import os
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from libs.common import installed
from libs.common.devices.device_controls import hot_policy
from libs.common.devices.means import only_tenants
from libs.common.errors import Unavailable
from libs.common.model import NodeId
from libs.common.process import service
from libs.common.process.agent_names import name_on_machine
from libs.common.process.cancellation import before
from libs.common.process.clock import SystemClock
from libs.common.process.open_files import raise_limit
from libs.common.process.pulse import CORE, HEARTBEATS, Pulse
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import Client, connect_as
from libs.common.transport.kv_nats import KvOutputs
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.second_connection import repeating_bus
from libs.common.transport.uploads import Bounds
from services.node_agent.channels.channels import Channels
from services.node_agent.devices.attempts import at_work, works
from services.node_agent.devices.sampling import Sampling
from services.node_agent.directories import accounts
from services.node_agent.directories.job_directories import LEASE, JobDirectories
from services.node_agent.directories.protocol import Machine
from services.node_agent.directories.retention import Keep
from services.node_agent.directories.tenant_numbers import TenantNumbers
from services.node_agent.drivers import sysfs
from services.node_agent.drivers.local import LocalDriver
from services.node_agent.drivers.simulated import SOCKETS, SimulatedDriver
from services.node_agent.fabric import choice
from services.node_agent.fabric.probes.prober import TcpProber, open_prober
from services.node_agent.fabric.rdma import ports
from services.node_agent.health.listen import listen, policy_of, watch_of
from services.node_agent.health.watch import Watch
from services.node_agent.incarnation import IncarnationFile
from services.node_agent.jobs.environment import passed_on
from services.node_agent.jobs.means import Means
from services.node_agent.jobs.probe import probe
from services.node_agent.links import opening
from services.node_agent.links.report import link_metrics
from services.node_agent.machine.cgroup_files import CONTROLLERS
from services.node_agent.machine.cgroups import Home, prepare
from services.node_agent.machine.processes import boot_id
from services.node_agent.machine.trusted_authority import trusted_by
from services.node_agent.memory.pools import Pools
from services.node_agent.memory.report import metrics as memory_metrics
from services.node_agent.memory.report import weights_metrics
from services.node_agent.metrics import exposition
from services.node_agent.metrics.machine_lines import machine_lines
from services.node_agent.metrics.scraping import scraped
from services.node_agent.peers.kept_roster import RosterFile
from services.node_agent.peers.peer_messages import NONCE_BYTES, Signer
from services.node_agent.peers.peers import Peers, among
from services.node_agent.peers.peers_udp import open_channel
from services.node_agent.pulled.pulled import Pulled
from services.node_agent.resident.resident import Resident
from services.node_agent.runtimes.allowed import allowed_of
from services.node_agent.runtimes.containers import Containers
from services.node_agent.service import Agent
from services.node_agent.setting_checks import check_settings
from services.node_agent.sharing.daemons import Program
from services.node_agent.sharing.shares import Shares
from services.node_agent.supervisor.lease import Lease
from services.node_agent.tracing.opening import tracing_of
from services.node_agent.watchdog.lease_watchdog import Fence

ENFORCED: Final = "enforced"
USERS: Final = "users"
# As in the agent's unit. A job, a container and a connection need a few files each.
FILES_MAX: Final = 1 << 16

logger = logging.getLogger(__name__)


async def main(settings: Settings, stop: asyncio.Event) -> None:
    """Run the agent. Raises Refused for invalid settings, and what `Agent.run` raises."""
    check_settings(settings)
    raise_limit(FILES_MAX)
    state_dir = Path(settings.state)
    driver = _driver(settings)
    home = _home(settings)
    machine = _machine(settings, driver, home)
    peers = await _peers(settings, state_dir)
    incarnation = await IncarnationFile(state_dir).load()
    work = _serve(settings, stop, machine=machine, driver=driver, peers=peers, home=home)
    await (work if peers is None else among(peers, incarnation, work))


def _home(settings: Settings) -> Home:
    """Return the agent's control groups."""
    return prepare(settings.cgroup, name_on_machine(settings.node_id, Path(settings.state)))


def _machine(settings: Settings, driver: LocalDriver | SimulatedDriver, home: Home) -> Machine:
    """Describe this machine: its address, its resources as the settings bound them, and its
    isolation.

    Logs what does not isolate jobs.
    """
    users = accounts.parsed(settings.job_users)
    numbers = TenantNumbers(settings.cluster_id, settings.tenant_uids, settings.tenant_uid_table)
    lost = {**home.lost, **({USERS: why} if (why := accounts.lost(users, numbers)) else {})}
    if lost:
        said = ", ".join(f"{name} ({why})" for name, why in lost.items())
        logger.warning("jobs on this node are not isolated by: %s", said)
    isolation = {
        name: f"lost: {lost[name]}" if name in lost else ENFORCED for name in (*CONTROLLERS, USERS)
    }
    isolation |= only_tenants(accounts.own_tenants(users))
    simulated = driver if isinstance(driver, SimulatedDriver) else None
    cpus_milli = simulated.cpus_milli if simulated else 1_000 * len(os.sched_getaffinity(0))
    own_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory_bytes = simulated.memory_bytes if simulated else own_bytes
    offered = choice.offer(settings.link_transport)
    return Machine(
        node_id=settings.node_id,
        address=settings.node_address,
        boot_id=boot_id(),
        version=installed.version(),
        heartbeat_ms=settings.heartbeat_ms,
        release_ms=settings.release_ms,
        preflight=settings.preflight > 0 and not settings.health_shadow,
        pause_c=settings.health_pause_c,
        burn_in=settings.burn_in,
        burn_in_ms=settings.burn_in_ms,
        scrub=settings.scrub,
        scrub_ms=settings.scrub_ms,
        environment=passed_on(os.environ),
        cpus_milli=settings.node_cpus * 1_000 or cpus_milli,
        memory_bytes=settings.node_memory_gib << 30 or memory_bytes,
        labels=settings.labels,
        rack=settings.node_rack,
        spine=settings.node_spine,
        transport=offered.transport,
        transport_why=offered.why,
        sockets=SOCKETS if simulated else sysfs.sockets(),
        isolation=isolation,
        numas={} if simulated else sysfs.numas(),
        users=users,
        numbers=numbers,
        keeps=True,
        fence_ms=settings.hardware_watchdog_s * 1_000 if settings.hardware_watchdog else 0,
        diagnose_after_s=settings.diagnose_after_s,
        diagnose_hook=settings.diagnose_hook > 0,
    )


async def _serve(
    settings: Settings,
    stop: asyncio.Event,
    machine: Machine,
    driver: LocalDriver | SimulatedDriver,
    peers: Peers | None,
    home: Home,
) -> None:
    """Connect, run the agent with its metrics and device watch, and close what it used."""
    client = await _connected(settings, stop, peers)
    sampling = Sampling(driver, 0 if driver.simulated else settings.sample_ms)
    agent = _agent(
        settings, machine, driver=driver, peers=peers, home=home, client=client, sampling=sampling
    )
    policy = policy_of(settings)
    agent.state.devices.policy = policy
    agent.state.controls.policy = hot_policy(settings.health_hot)
    watch = watch_of(settings, driver, agent.devices, policy)
    pipes = listen(settings, watch, driver, sampling)
    metrics = partial(_metrics, settings.node_id, settings.state, agent, driver, sampling, watch)
    second = partial(connect_as, settings, f"node-{settings.node_id}")
    try:
        async with (
            scraped(settings.metrics_host, settings.metrics_port, metrics),
            repeating_bus(client, second, len(settings.servers)) as bus,
        ):
            agent.heartbeats.bus = bus
            await agent.run(stop)
    finally:
        for pipe in pipes:
            pipe.close()
        await driver.close()
        await client.close()


async def _connected(settings: Settings, stop: asyncio.Event, peers: Peers | None) -> Client:
    """Connect to the log; keep trying as long as the peers extend this node's lease.

    Raises Unavailable.
    """
    while True:
        try:
            return await before(stop, connect_as(settings, f"node-{settings.node_id}"))
        except Unavailable:
            if stop.is_set() or peers is None or not peers.holds_lease():
                raise


def _agent(
    settings: Settings,
    machine: Machine,
    driver: LocalDriver | SimulatedDriver,
    peers: Peers | None,
    home: Home,
    client: Client,
    sampling: Sampling,
) -> Agent:
    """Return the agent with the real world around it."""
    state_dir = Path(settings.state)
    keep = Keep(settings.keep_hours * 3_600, settings.keep_bytes, settings.keep_jobs)
    bounds = Bounds(settings.upload_bytes, settings.upload_files)
    fence = Fence(settings.hardware_watchdog, settings.hardware_watchdog_s)
    jobs = JobDirectories(state_dir, keep, bounds, home.dirs, fence)
    bus = NatsBus(client)
    program = Program(
        settings.mps_control, settings.mps_start_ms / 1_000, settings.mps_quit_ms / 1_000
    )
    shares = Shares(state_dir, program, home.dirs)
    resident = _resident(settings, machine)
    links = opening.links_of(settings, jobs, peers)
    if links is not None:
        opening.share_weights(links, resident, bus)
        machine = msgspec.structs.replace(machine, link_address=links.address)
    agent = Agent(
        machine,
        log=JetStreamLog(client),
        bus=bus,
        clock=SystemClock(),
        jobs=jobs,
        driver=driver,
        outputs=KvOutputs(client),
        memory=IncarnationFile(state_dir),
        probe=partial(probe, default_s=settings.probe_ms / 1_000),
        peers=peers,
        channels=Channels(settings.node_id, bus, jobs, settings.execs_per_job),
        sampling=sampling,
        means=Means(
            shares,
            _containers(settings, jobs, machine),
            Pools(state_dir.resolve(), machine.memory_bytes, machine.numas),
            resident,
            _pulled(settings, machine),
            tracing_of(settings, jobs),
        ),
        prober=_prober(settings),
    )
    agent.links = links
    agent.authority = trusted_by(settings)
    if links is not None:
        agent.means.uploads = opening.share_uploads(links, settings, bus)
        opening.record_choices(links, agent.writer, lambda: agent.state.incarnation)
    agent.pulse = Pulse(settings.alive_file, CORE, HEARTBEATS)
    if isinstance(driver, SimulatedDriver):
        driver.running = lambda: works(agent.state, jobs.device_s)
    else:
        driver.resident = resident.devices.servers.bytes_on
        driver.holds = resident.processes
    return agent


def _containers(settings: Settings, jobs: JobDirectories, machine: Machine) -> Containers:
    return Containers(
        jobs.jobs_dir,
        settings.container_engine,
        allowed=allowed_of(settings.container_mounts, settings.container_users),
        image_bytes=settings.container_image_bytes,
        cache_bytes=settings.container_cache_bytes,
        taken=partial(accounts.ids_of_jobs, machine.users, machine.numbers),
    )


def _pulled(settings: Settings, machine: Machine) -> Pulled:
    """Return the models that jobs pull to this node."""
    state_dir = Path(settings.state).resolve()
    folder = Path(settings.pulled_dir).resolve() if settings.pulled_dir else state_dir / "pulled"
    return Pulled(machine, state_dir, folder, settings.pulled_bytes, settings.hub)


def _prober(settings: Settings) -> TcpProber | None:
    """Return the prober of the fabric; None without an address of this machine."""
    try:
        return open_prober(settings.node_address, SystemClock())
    except OSError as error:
        logger.warning(
            "cannot listen on %s (%s): fabric tests leave this node out",
            settings.node_address,
            error,
        )
        return None


def _resident(settings: Settings, machine: Machine) -> Resident:
    """Return the resident data of models: compile products below the state directory, weights on a
    tmpfs, in a folder that is this agent's alone.
    """
    state_dir = Path(settings.state)
    name = name_on_machine(settings.node_id, state_dir)
    memory_dir = Path(settings.kept_memory_dir) / f"muster-{name}"
    return Resident(machine, state_dir, memory_dir, settings.kept_artefact_bytes)


async def _metrics(
    node: str,
    state: str,
    agent: Agent,
    driver: LocalDriver | SimulatedDriver,
    sampling: Sampling,
    watch: Watch,
) -> str:
    samples = await driver.sample() if driver.simulated else sampling.latest
    shares, version = (
        exposition.job_shares(at_work(agent.state)),
        driver.versions.get(exposition.NVIDIA, ""),
    )
    healths = exposition.health(agent.state.devices)
    return exposition.text(
        node,
        gpus=agent.devices.inventory,
        samples=samples,
        jobs=shares,
        nvidia_version=version,
        xids=watch.xids,
        healths=healths,
        rdma=await asyncio.to_thread(ports.ports),
        more=[
            *memory_metrics(node, agent.means.pools.report()),
            *weights_metrics(node, agent.means.resident.device_bytes()),
            *([] if agent.links is None else link_metrics(node, agent.links.choices.counts())),
            *agent.jobs.watchdog.metrics(node),
            *await machine_lines(node, state),
        ],
    )


def _driver(settings: Settings) -> LocalDriver | SimulatedDriver:
    if settings.gpu_driver == "local":
        removed = [part.strip() for part in settings.gpus_removed.split(",") if part.strip()]
        return LocalDriver(
            answer_s=settings.driver_answer_ms / 1_000,
            begin_s=settings.driver_begin_ms / 1_000,
            reset_s=settings.driver_reset_s,
            node_id=settings.node_id,
            removed=removed,
        )
    return SimulatedDriver(
        settings.node_id,
        settings.simulated_gpus,
        settings.simulated_model,
        settings.simulated_memory_gib,
    )


async def _peers(settings: Settings, state_dir: Path) -> Peers | None:
    """Return the peers that may extend the lease.

    None without a key to sign with, or without an address of this machine: then leases end as
    granted.
    """
    if settings.nkey_seed is None:
        return None
    lease, signer = _lease(state_dir), Signer(settings.nkey_seed)
    keeper = RosterFile(state_dir)
    try:
        channel = await open_channel(settings.node_address, (await keeper.load()).address)
    except OSError as error:
        logger.warning(
            "cannot listen on %s (%s): peers cannot extend the lease, so this node's jobs end "
            "when no scheduler answers",
            settings.node_address,
            error,
        )
        return None
    return Peers(
        node_id=NodeId(settings.node_id),
        channel=channel,
        clock=SystemClock(),
        lease=lease,
        keeper=keeper,
        signer=signer,
        make_nonce=lambda: os.urandom(NONCE_BYTES),
    )


def _lease(state_dir: Path) -> Lease:
    state_dir.mkdir(parents=True, exist_ok=True)
    return Lease(str(state_dir.resolve() / LEASE))


if __name__ == "__main__":
    service.run("node_agent", main)
