"""The survey of the log on a real server, and the control plane that a gateway makes of it."""

import asyncio
import time
from pathlib import Path

from libs.common.leadership.telling import tell
from libs.common.process.clock import SystemClock
from libs.common.settings.settings import Settings
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from libs.common.transport.log_jetstream import JetStreamLog
from libs.common.transport.survey_nats import survey
from libs.embedded import certificates
from services.api_gateway.control_plane.plane import ControlPlane
from services.api_gateway.views.control_plane import control_plane_shown
from tests.contract.conftest import STREAM_BYTES, Logs
from tests.natsserver import NAME, NatsServer

TOLD_S = 10.0


async def test_survey_tells_the_size_the_bound_the_age_and_the_servers(
    server: NatsServer, jetstream: Logs
) -> None:
    log = await jetstream()
    assert isinstance(log, JetStreamLog)
    empty = await survey(log.client)
    assert (empty.last, empty.commits, empty.first_ns, empty.bytes_max) == (0, 0, 0, STREAM_BYTES)
    before_ns = time.time_ns()
    await log.append("facts.quota", b"x" * 1_000, 0)
    found = await survey(log.client)
    assert (found.last, found.commits) == (1, 1) and found.bytes > 1_000
    assert before_ns - 10**9 < found.first_ns < time.time_ns() + 10**9
    assert [(each.name, each.leads, each.lag) for each in found.servers] == [(NAME, True, 0)]


async def test_gateway_shows_members_log_and_certificates(
    server: NatsServer, jetstream: Logs, tmp_path: Path
) -> None:
    log = await jetstream()
    assert isinstance(log, JetStreamLog)
    client = await connect([server.url], "test")
    await log.append("facts.quota", b"x" * 1_000, 0)
    certificates.ensure(tmp_path)
    authority = certificates.certificate_file(tmp_path, certificates.AUTHORITY)
    own = certificates.certificate_file(tmp_path, certificates.SERVER)
    settings = Settings(tls_ca_file=str(authority), tls_cert_file=str(own))
    plane = ControlPlane(
        NatsBus(client),
        clock=SystemClock(),
        settings=settings,
        survey=lambda: survey(client),
        read_seq=lambda: 1,
    )
    running = [
        asyncio.create_task(plane.run()),
        asyncio.create_task(tell(NatsBus(client), "scheduler", "b", lambda: (False, 3, 1))),
    ]
    async with asyncio.timeout(TOLD_S):
        while len(plane.members.known()) < 2 or plane.log is None or not plane.certificates:
            await asyncio.sleep(0.05)
    shown = control_plane_shown(plane)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    await client.close()
    members = shown["members"]
    assert isinstance(members, list)
    assert [(each.service, each.state, each.epoch, each.lag) for each in members] == [
        ("gateway", "active", 0, 0),
        ("scheduler", "follower", 3, 0),
    ]
    found = shown["certificates"]
    assert isinstance(found, list)
    assert [each.name for each in found] == ["authority", "gateway, for the cluster"]
    assert all(each.days_left > 300 and not each.warning for each in found)
    assert getattr(shown["log"], "last", 0) == 1


def test_nothing_of_the_control_plane_is_known_of_the_past() -> None:
    assert control_plane_shown(None) == {"members": [], "log": None, "certificates": []}
