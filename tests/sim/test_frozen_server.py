"""A server freezes without closing a connection: its clients leave it well within a lease, and no
job of a healthy node ends for it.
"""

import pytest

from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats
from tests.sim import faults, planted_loads
from tests.sim.faults import FROZEN, SERVERS, Blow
from tests.sim.seeds import stormy
from tests.sim.test_gossip import expired, lived, lost, ran

# Seeds within which the planted bug must be found.
WITHIN = 3


def frozen(seed: int) -> Blow:
    return Blow(6.0 + seed % 4, FROZEN, SERVERS[seed % len(SERVERS)], 30.0)


@pytest.mark.attack
@pytest.mark.parametrize("server", SERVERS)
def test_frozen_server_ends_no_job(server: str) -> None:
    seed = SERVERS.index(server)
    world = lived(seed, frozen(seed))
    assert expired(world) == lost(world) == []


def test_client_leaves_a_silent_server_within_a_third_of_a_lease() -> None:
    assert Settings().lease_ms / 1_000 >= connection_nats.LEAVES_SILENT_SERVER_S * 3


def test_planted_rare_pings_end_jobs_of_healthy_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    planted_loads.clients_ping_as_rarely_as_before(monkeypatch)
    worlds = [ran(seed, frozen(seed)) for seed in range(WITHIN)]
    assert any(expired(world) or lost(world) for world in worlds)


def test_a_part_of_the_random_runs_has_a_frozen_server() -> None:
    blows = [blow for plan in stormy(0, 400) for blow in plan.blows if blow.kind == faults.FROZEN]
    assert 60 <= len(blows) <= 140
