"""`drain`, `offline`, `online`, `health`, `status` and `watch` against a server that plays the
gateway.
"""

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


def test_drain_says_what_is_left_on_nodes_and_devices(world: World) -> None:
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


def test_offline_is_refused_while_a_job_has_it_and_forced_when_that_is_said(world: World) -> None:
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


def test_online_is_quiet_and_nothing_is_nobody(world: World) -> None:
    world.routes["PUT /v1/gpus/G/service"] = GPU
    code, out, err = world.run("online", "--gpu-id", "G")
    assert (code, err) == (0, "") and "G" in out
    code, _, err = world.run("online")
    assert code == 2 and "--gpu-id" in err


def test_health_names_what_is_unwell_and_shows_one_with_its_errors(world: World) -> None:
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


def test_gpu_power_says_of_each_gpu_what_became_of_it(world: World) -> None:
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


def test_gpu_reset_has_no_value_is_refused_with_the_reason_and_nothing_is_nobody(
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
def test_each_of_its_verbs_asks_for_its_control(
    world: World, words: tuple[str, ...], control: str, value: str
) -> None:
    world.routes[f"PUT /v1/gpus/H/controls/{control}"] = {
        **FREE,
        "controls": {control: set_to(value, in_force=value)},
    }
    code, out, _ = world.run("gpu", *words, "--gpu-id", "H")
    assert (code, out) == (0, f"GPU H: {control} {value}: done\n")
    assert world.asked("PUT", f"/v1/gpus/H/controls/{control}")[0].json["value"] == value


def test_status_shows_each_gpu_where_all_are_asked_for_and_watch_prints_once_without_a_terminal(
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


def test_jobs_are_listed_and_ended_by_the_names_of_gpu_platform_too(world: World) -> None:
    world.routes["GET /v1/jobs"] = {"jobs": [job()], "next": None}
    world.routes["POST /v1/jobs/train/kill"] = job()
    assert world.run("jobs", "list")[1] == world.run("ps")[1]
    assert world.run("jobs", "kill", "train")[0] == 0
    assert world.run("jobs", "describe")[0] == 2
