"""A machine with a model's replica is removed: another one serves before the first has ended."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.backup_world import Machine, World
from tests.tidy import ROOT

SERVER = (sys.executable, str(ROOT / "examples" / "model_server.py"))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path, MUSTER_LEASE_MS="30000")
    yield found
    found.close()


def ready(world: World) -> list[dict[str, Any]]:
    replicas = world.get("/v1/deployments/chat")["replicas"]
    return [each for each in replicas if each["ready"]]


def machine_of(world: World, replica: dict[str, Any]) -> Machine:
    (node,) = world.get(f"/v1/jobs/{replica['id']}")["node_ids"]
    return next(machine for machine in world.machines if machine.name == node)


def test_the_replica_of_a_machine_that_is_drained_and_removed_moves(world: World) -> None:
    world.machines = [Machine(world, "one"), Machine(world, "two")]
    world.until(lambda: len(world.get("/v1/nodes")["nodes"]) == 2, "both machines joined")
    command = [*SERVER, "--host", "127.0.0.1", "--port", "{port}"]
    world.post("/v1/deployments", {"name": "chat", "command": command, "fraction": 0.25})
    (first,) = world.until(lambda: ready(world), "the model is ready")
    gone = machine_of(world, first)
    world.cli("node", "remove", gone.name, "--drain")
    gone.dead = True  # its agent ends and is not started again

    def is_removed() -> bool:
        assert ready(world), "no replica served"
        return gone.process.poll() is not None

    world.until(is_removed, "the agent of the removed machine ended")
    (second,) = ready(world)
    assert machine_of(world, second) is not gone
    assert world.jobs()[first["id"]]["state"] == "cancelled"
    assert world.get("/v1/deployments/chat")["crashes"] == 0
