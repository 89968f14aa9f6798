"""`muster alloc` and `extend` against a fake gateway that records requests."""

import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.cli_world import Request, World, job

ID = "jaaaaaaaaaa"
ENV = {"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
NODE = {
    "node_id": "n1",
    "address": "10.0.0.1",
    "gpus": [{"uuid": "GPU-a"}, {"uuid": "GPU-b"}],
    "env": ENV,
}


def shown(**changes: object) -> dict[str, Any]:
    return {
        "id": ID,
        "state": "running",
        "reason": "",
        "nodes": [NODE],
        "expires_at": "2099-01-01T00:00:00.000Z",
        **changes,
    }


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    made.routes["POST /v1/allocations"] = shown(state="pending", nodes=[], expires_at=None)
    made.routes[f"GET /v1/allocations/{ID}"] = shown()
    made.routes[f"GET /v1/jobs/{ID}/wait"] = job(state="running")
    yield made
    made.close()


def test_alloc_waits_for_the_gpus_and_prints_them_with_their_variables(
    world: World,
) -> None:
    waits = iter(("pending", "queued", "placed", "running"))
    world.routes[f"GET /v1/jobs/{ID}/wait"] = lambda _: job(state=next(waits))
    code, out, err = world.run(
        "alloc",
        "--gpus",
        "2",
        "--expires",
        "4h",
        "--warn",
        "10m",
        "--label",
        "team=a",
        "--gpu-model",
        "H100",
    )
    assert (code, err) == (0, "") and out.splitlines()[0] == ID
    assert (
        "n1" in out
        and "GPU-a,GPU-b" in out
        and "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b" in out
        and "held until" in out
    )
    (sent,) = [request.json for request in world.asked("POST", "/v1/allocations")]
    assert (sent["gpus"], sent["expires"], sent["warn"], sent["labels"], sent["model"]) == (
        2,
        14_400,
        600,
        {"team": "a"},
        "H100",
    )
    assert "command" not in sent and sent["user"] == "ada"
    assert [request.query["state"] for request in world.asked("GET", f"/v1/jobs/{ID}/wait")] == [
        "pending",
        "pending",
        "queued",
        "placed",
    ]


def test_alloc_prints_variables_for_a_shell(world: World) -> None:
    code, out, _ = world.run("alloc", "-o", "env")
    assert (code, out) == (
        0,
        "export CUDA_VISIBLE_DEVICES=GPU-a,GPU-b\nexport CUDA_DEVICE_ORDER=PCI_BUS_ID\n",
    )
    assert (
        world.run("alloc", "--nodes", "2", "-o", "env")[0] == 2
        and world.run("alloc", "--no-wait", "-o", "env")[0] == 2
    )


def test_alloc_without_waiting_prints_only_the_id(world: World) -> None:
    assert world.run("alloc", "--no-wait") == (0, f"{ID}\n", "")
    assert world.asked("GET", f"/v1/jobs/{ID}/wait") == []


def test_an_allocation_that_ends_before_it_is_held_is_an_error(world: World) -> None:
    world.routes[f"GET /v1/jobs/{ID}/wait"] = job(state="rejected")
    world.routes[f"GET /v1/allocations/{ID}"] = shown(
        state="rejected", reason="too many wait", nodes=[]
    )
    code, out, err = world.run("alloc")
    assert (code, out) == (1, "") and "rejected: too many wait" in err


def test_ctrl_c_while_waiting_cancels_the_allocation(world: World) -> None:
    waiting, given_back = threading.Event(), threading.Event()

    def wait(_: Request) -> object:
        waiting.set()
        given_back.wait(20)
        return job(state="queued")

    world.routes[f"GET /v1/jobs/{ID}/wait"] = wait
    world.routes[f"DELETE /v1/allocations/{ID}"] = shown(state="cancelled")
    process = world.start("alloc")
    assert waiting.wait(20)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    given_back.set()
    assert process.returncode == 130 and b"cancelled allocation jaaaaaaaaaa" in err
    assert len(world.asked("DELETE", f"/v1/allocations/{ID}")) == 1


def test_extend_adds_time_to_an_allocation(world: World) -> None:
    world.routes[f"PATCH /v1/allocations/{ID}"] = shown()
    code, out, _ = world.run("extend", ID, "--by", "1h30m")
    assert code == 0 and out.startswith(f"{ID} held until")
    assert [request.json for request in world.asked("PATCH", f"/v1/allocations/{ID}")] == [
        {"by": 5_400, "user": "ada"}
    ]
    assert world.run("extend", ID)[0] == 2
