"""`muster whatif` against a fake gateway that records requests."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import World

WAITS = {
    "would_start": False,
    "placement": [],
    "answer": "it would wait",
    "blockers": [{"count": 1, "what": "devices in use", "detail": "a"}],
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["POST /v1/whatif"] = {**WAITS, "remedy": "add 1 node", "at": 7}
    yield made
    made.close()


def test_whatif_submits_nothing(world: World) -> None:
    code, out, _ = world.run("whatif", "--gpus", "8", "--nodes", "2")
    assert code == 1 and out.startswith("it would wait\n") and "Remedy: add 1 node" in out
    (sent,) = [request.json for request in world.asked("POST", "/v1/whatif")]
    assert (sent["gpus"], sent["nodes"], sent["command"], "add_nodes" in sent) == (
        8,
        2,
        ["true"],
        False,
    )
    assert world.asked("POST", "/v1/jobs") == []


def test_whatif_sends_additional_nodes_and_exits_with_the_answer(world: World) -> None:
    world.routes["POST /v1/whatif"] = {
        **WAITS,
        "would_start": True,
        "answer": "it would start now, on new_1",
        "blockers": [],
        "remedy": None,
    }
    line = (
        "whatif",
        "--gpus",
        "8",
        "--add-nodes",
        "2",
        "--add-gpus",
        "8",
        "--add-model",
        "H100",
        "--",
        "python",
        "x.py",
    )
    assert world.run(*line) == (0, "it would start now, on new_1\n", "")
    (sent,) = [request.json for request in world.asked("POST", "/v1/whatif")]
    assert (sent["add_nodes"], sent["command"]) == (
        {"nodes": 2, "gpus": 8, "model": "H100"},
        ["python", "x.py"],
    )


def test_add_gpus_and_add_model_need_add_nodes(world: World) -> None:
    code, _, err = world.run("whatif", "--add-gpus", "8")
    assert (code, world.seen) == (2, []) and "--add-nodes" in err
