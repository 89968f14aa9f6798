"""`drain`, `offline`, `online`, `health`, `status` and `watch` against a fake gateway."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import Problem, World, job

GPU = {
    "uuid": "G",
    "present": True,
    "node_id": "node-1",
    "index": 0,
    "model": "H100",
    "memory_bytes": 80 << 30,
    "state": "IN_USE",
    "held_share": 100,
    "health": "healthy",
    "suspicion": "",
    "service": "online",
    "verdict": "",
    "detail": "",
    "errors": [],
    "controls": {},
    "holders": [{"job_id": "jaaaaaaaaaa", "attempt": 1, "share": 100}],
}
FREE = {**GPU, "uuid": "H", "index": 1, "state": "AVAILABLE", "held_share": 0, "holders": []}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


def test_drain_prints_the_jobs_that_are_left(world: World) -> None:
    world.routes["PUT /v1/nodes/node-1/service"] = {"node": {"id": "node-1"}, "gpus": [GPU, FREE]}
    world.routes["PUT /v1/gpus/H/service"] = FREE
    code, out, err = world.run("drain", "node-1", "--gpu-id", "H")
    assert (code, err) == (0, "") and "jaaaaaaaaaa" in out and len(out.splitlines()) == 2
    assert world.asked("PUT", "/v1/nodes/node-1/service")[0].json == {
        "service": "draining",
        "force": False,
        "user": "ada",
    }
    assert world.run("drain", "--gpu-id", "H") == (0, "no job uses these GPUs\n", "")


def test_offline_is_refused_while_a_job_uses_the_gpu_unless_forced(world: World) -> None:
    world.routes["PUT /v1/gpus/G/service"] = lambda request: (
        GPU if request.json["force"] else Problem(409, "jaaaaaaaaaa still has a part of it")
    )
    assert world.run("offline", "--gpu-id", "G") == (
        1,
        "",
        "muster: jaaaaaaaaaa still has a part of it\n",
    )
    assert world.run("offline", "--gpu-id", "G", "--force")[0] == 0
    assert world.asked("PUT", "/v1/gpus/G/service")[1].json["force"] is True


def test_online_without_a_node_or_gpu_is_refused(world: World) -> None:
    world.routes["PUT /v1/gpus/G/service"] = GPU
    code, out, err = world.run("online", "--gpu-id", "G")
    assert (code, err) == (0, "") and "G" in out
    code, _, err = world.run("online")
    assert code == 2 and "--gpu-id" in err


def test_health_lists_unhealthy_gpus_and_shows_one_with_its_errors(world: World) -> None:
    world.routes["GET /v1/gpus"] = {"gpus": [GPU, FREE], "next": None}
    assert world.run("health")[1] == "all of 2 GPUs are healthy and online\n"
    errors = [
        {
            "error": "xid 79",
            "verdict": "reboot_node",
            "jobs": [{"job_id": "jaaaaaaaaaa", "attempt": 1}],
            "at_ns": 1,
        }
    ]
    sick = {
        **FREE,
        "health": "offline",
        "reason": "xid",
        "verdict": "reboot_node",
        "detail": "xid 79 by the driver",
        "errors": errors,
    }
    world.routes["GET /v1/gpus"] = {
        "gpus": [GPU, sick, {**FREE, "service": "draining"}],
        "next": None,
    }
    assert len(world.run("health")[1].splitlines()) == 3
    world.routes["GET /v1/gpus/H"] = sick
    out = world.run("health", "--gpu-id", "H")[1]
    assert (
        "health offline, service online, recovers by: reboot_node\nxid 79 by the driver\n" in out
        and "jaaaaaaaaaa" in out
    )
    world.routes["GET /v1/gpus/G"] = GPU
    assert (
        world.run("health", "--gpu-id", "G")[1].splitlines()[-1] == "health healthy, service online"
    )


def set_to(
    value: str, outcome: str = "done", detail: str = "", request: int = 7, in_force: str = ""
) -> dict[str, object]:
    return {
        "value": value,
        "request": request,
        "user": "ada",
        "outcome": outcome,
        "detail": detail,
        "in_force": in_force,
    }


def test_gpu_power_prints_the_outcome_for_each_gpu(world: World) -> None:
    def of(gpu: dict[str, object], control: dict[str, object]) -> dict[str, object]:
        return {**gpu, "controls": {"power": control}}

    world.routes["PUT /v1/nodes/node-1/controls/power"] = {
        "node": {},
        "gpus": [of(GPU, set_to("300", "")), of(FREE, set_to("300", ""))],
    }
    world.routes["GET /v1/gpus/G"] = of(GPU, set_to("300", in_force="300"))
    world.routes["GET /v1/gpus/H"] = of(FREE, set_to("300", "lacking", "Not Supported"))
    lines = "GPU G: power 300: done\nGPU H: power 300: lacking (Not Supported), default in force\n"
    assert world.run("gpu", "power", "300", "--node", "node-1") == (0, lines, "")
    assert world.asked("PUT", "/v1/nodes/node-1/controls/power")[0].json == {
        "value": "300",
        "user": "ada",
    }
    assert world.run("gpu", "power", "300", "--node", "node-1", "--no-wait") == (0, "", "")
    world.routes["GET /v1/gpus/G"] = of(GPU, set_to("300", "denied", "Insufficient Permissions"))
    assert world.run("gpu", "power", "300", "--node", "node-1")[0] == 1
    world.routes["GET /v1/gpus/G"] = of(GPU, set_to("400", "", request=8))
    assert "ada has set power again" in world.run("gpu", "power", "300", "--node", "node-1")[2]
    world.routes["GET /v1/gpus/G"] = of(GPU, set_to("300", ""))
    assert (
        "has not reported"
        in world.run("gpu", "power", "300", "--node", "node-1", "--timeout", "1s")[2]
    )
    assert "power 300: requested, default in force" in world.run("health", "--gpu-id", "G")[1]


def test_gpu_reset_takes_no_value_and_prints_a_refusal(
    world: World,
) -> None:
    world.routes["PUT /v1/gpus/G/controls/reset"] = Problem(409, "reset needs the device free")
    assert world.run("gpu", "reset", "--gpu-id", "G") == (
        1,
        "",
        "muster: reset needs the device free\n",
    )
    assert world.asked("PUT", "/v1/gpus/G/controls/reset")[0].json == {"user": "ada"}
    world.routes["PUT /v1/gpus/H/controls/reset"] = {**FREE, "controls": {"reset": set_to("")}}
    assert world.run("gpu", "reset", "--gpu-id", "H") == (0, "GPU H: reset: done\n", "")
    assert world.run("gpu", "reset")[0] == 2
    for words in (("power", "--gpu-id", "H"), ("power", "300", "--default", "--gpu-id", "H")):
        assert "give WATTS or --default" in world.run("gpu", *words)[2]


@pytest.mark.parametrize(
    ("words", "control", "value"),
    [
        (("clocks", "1200-1500"), "clocks", "1200-1500"),
        (("persistence", "on"), "persistence", "on"),
        (("compute-mode", "prohibited"), "compute-mode", "prohibited"),
        (("ecc", "--default"), "ecc", "default"),
        (("power", "default"), "power", "default"),
    ],
)
def test_each_verb_of_gpu_sends_its_control(
    world: World, words: tuple[str, ...], control: str, value: str
) -> None:
    world.routes[f"PUT /v1/gpus/H/controls/{control}"] = {
        **FREE,
        "controls": {control: set_to(value, in_force=value)},
    }
    code, out, _ = world.run("gpu", *words, "--gpu-id", "H")
    assert (code, out) == (0, f"GPU H: {control} {value}: done\n")
    assert world.asked("PUT", f"/v1/gpus/H/controls/{control}")[0].json["value"] == value


def test_status_all_lists_gpus_and_watch_prints_once_without_a_terminal(
    world: World,
) -> None:
    world.routes["GET /v1/nodes"] = {"nodes": [{"id": "node-1", "state": "healthy"}]}
    world.routes["GET /v1/gpus"] = {"gpus": [GPU, FREE]}
    world.routes["GET /v1/jobs"] = {"jobs": [job()], "next": None}
    world.routes["GET /v1/cluster"] = {
        "cluster_id": "c",
        "seq": 5,
        "leader": "a",
        "gpu_share_total": 200,
        "gpu_share_held": 100,
    }
    short, full = world.run("status")[1], world.run("status", "--all")[1]
    assert (
        "1 of 2 held" in short
        and full.startswith(short.split("jaaaaaaaaaa")[0])
        and "in_use" in full.splitlines()[-2]
    )
    assert world.run("watch", "--interval", "5s")[1].splitlines()[1] == short.splitlines()[1]
    assert world.run("watch", "--interval", "0s")[0] == 2


def test_the_names_of_gpu_platform_list_and_end_jobs(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job()], "next": None}
    world.routes["POST /v1/jobs/train/kill"] = job()
    assert world.run("jobs", "list")[1] == world.run("ps")[1]
    assert world.run("jobs", "kill", "train")[0] == 0
    assert world.run("jobs", "describe")[0] == 2
