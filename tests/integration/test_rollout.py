"""The steps of a rollout: what is written, what is restarted, and what a repeated command does.

Machines are folders: `ssh` is a twin that runs each command in the folders of the machine that it
names, and systemctl keeps a record. The gateway answers by what runs. test_cluster_deploy.py
installs, joins and upgrades over a real sshd.
"""

import json
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from libs.common.errors import Refused, Unavailable
from libs.deploy import leaders, programs, rollout
from libs.deploy.plan import Head, NodeMachine, Plan
from libs.deploy.rollout import Rollout
from tests.tidy import ROOT

# A command that contains the text in the file `cut` meets a broken connection.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
if [ -s {folder}/cut ] && printf %s "$3" | grep -qFf {folder}/cut; then exit 255; fi
exec sh -c "$(printf %s "$3" | sed "s#/shared/#/$2/#g")"
"""
# `running` is the version that was in use at the last start; `lives` has a line for each start.
SYSTEMCTL = """#!/bin/sh
cd "$(dirname "$0")" || exit 1
case "$1" in restart|start)
    test -e "units/$2.service" || exit 5
    [ "$1" = start ] && [ -e running ] && exit 0
    basename "$(readlink prefix/current)" > running
    echo "$1" >> lives
esac
"""
# The program that asks the gateway needs the standard library only, and starts faster so.
PYTHON = f"""#!/bin/sh
[ "$1" = -P ] || set -- -IS "$@"
exec {sys.executable} "$@"
"""
# The time to become healthy, also on a busy machine, and where a version never does.
HEALTH_S = 20
SICK_S = 1
SERVICES = list((ROOT / "services").glob("*/__main__.py"))


class World:
    """The folders of a head and of a node that has joined, two versions, and the gateway.

    No machine becomes healthy with a version in `sick`. `leaderless` has the service that does not
    start, by version. The gateway of a version in `old` does not show the services. With a
    version in `strangers` another program has the gateway's port.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.sick: set[str] = set()
        self.leaderless: dict[str, str] = {}
        self.old: set[str] = set()
        self.strangers: set[str] = set()
        self.state = "healthy"
        self.invitations = 0
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), _gateway(self))
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        _program(folder / "bin" / "ssh", SSH.format(folder=folder))
        shared = folder / "shared"
        self.plan = Plan(
            wheel=str(folder / "first.whl"),
            head=Head(ssh="head", listen="127.0.0.1"),
            nodes={"n1": NodeMachine(ssh="n1", simulated_gpus=2)},
            prefix=str(shared / "prefix"),
            state=str(shared / "state"),
            units=str(shared / "units"),
            python="true",
            systemctl=str(shared / "systemctl"),
            port=self.server.server_port,
            health_s=HEALTH_S,
        )
        self.first, self.second = self._installed("first"), self._installed("second")
        for name in ("head", "n1"):
            _program(folder / name / "systemctl", SYSTEMCTL)
        _written(folder / "head" / "state" / "profile.json", '{"key": "k"}')
        _written(folder / "n1" / "state" / "node" / "agent.env", "")

    def _installed(self, name: str) -> str:
        """Make a wheel, and its version on each machine as an installation leaves it."""
        _written(self.folder / f"{name}.whl", name)
        version = self.rollout(name).version
        for machine in ("head", "n1"):
            place = self.folder / machine / "prefix" / "versions" / version
            _program(place / "bin" / "python", PYTHON)
            (place / "whole").touch()
        return version

    def rollout(self, wheel: str = "first", **changes: object) -> Rollout:
        wheel_path = str(self.folder / f"{wheel}.whl")
        plan = msgspec.structs.replace(self.plan, wheel=wheel_path, **changes)
        if self.sick or self.leaderless or self.strangers:
            plan = msgspec.structs.replace(plan, health_s=SICK_S)
        return Rollout(plan, print)

    def cut(self, words: str) -> None:
        _written(self.folder / "cut", words)

    def lives(self, name: str) -> list[str]:
        return _read(self.folder / name / "lives").split()

    def running(self, name: str) -> str:
        return _read(self.folder / name / "running").strip()

    def members(self) -> list[dict[str, object]]:
        """Return the processes that the gateway shows. Each start of the head begins new terms."""
        services = {*leaders.LED} - {self.leaderless.get(self.running("head"), "")}
        term = len(self.lives("head"))
        return [{"service": each, "state": "leader", "epoch": term} for each in services]

    def is_settled(self, name: str) -> bool:
        return not (self.folder / name / "prefix" / "changing").exists()


def _gateway(world: World) -> type[BaseHTTPRequestHandler]:
    class Gateway(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if world.running("head") in ("", *world.sick):
                self._say(503, {"detail": "no gateway"})
            elif world.running("head") in world.strangers:
                self._say(404, {})
            elif self.path == "/v1/cluster" and world.running("head") not in world.old:
                self._say(200, {"members": world.members()})
            elif self.path == "/v1/nodes":
                self._say(200, {"nodes": []})
            elif (lives := world.lives("n1")) and self.path == "/v1/nodes/n1":
                state = "unreachable" if world.running("n1") in world.sick else world.state
                self._say(200, {"node": {"state": state, "incarnation": len(lives)}})
            else:
                self._say(404, {})

        def do_POST(self) -> None:
            world.invitations += 1
            if world.invitations > 1:
                self._say(409, {"detail": "a name is used once"})
            else:
                self._say(201, {"url": "https://127.0.0.1:1", "token": "t"})

        def _say(self, code: int, body: object) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *words: object) -> None:
            """Keep quiet."""

    return Gateway


def _program(path: Path, text: str) -> None:
    _written(path, text)
    path.chmod(0o755)


def _written(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(rollout, "POLL_S", 0.05)
    monkeypatch.setattr(leaders, "KEPT_NS", 100_000_000)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin", prepend=":")
    found = World(tmp_path)
    yield found
    found.server.shutdown()
    found.server.server_close()


def test_a_changed_setting_restarts_the_head_once_and_only_its_user_can_read_it(
    world: World,
) -> None:
    world.rollout().deploy([])
    settings = {"audit_url": "postgresql://muster:secret@db/muster"}
    world.rollout(settings=settings).deploy([])
    world.rollout(settings=settings).deploy([])
    assert world.lives("head") == ["restart", "restart"]
    file = world.folder / "head" / "state" / "head.env"
    assert file.read_text() == 'MUSTER_AUDIT_URL="postgresql://muster:secret@db/muster"\n'
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert world.is_settled("head")


def test_the_head_runs_as_many_processes_of_each_service_as_the_plan_says(world: World) -> None:
    unit = world.folder / "head" / "units" / "muster.service"
    world.rollout().deploy([])
    assert " --schedulers 2 --quotas 2 --audits 2\n" in unit.read_text()
    head = msgspec.structs.replace(world.plan.head, schedulers=1, quotas=3)
    world.rollout(head=head).deploy([])
    assert " --schedulers 1 --quotas 3 --audits 2\n" in unit.read_text()
    assert world.lives("head") == ["restart", "restart"]


def test_an_installation_that_broke_off_before_the_start_is_completed(world: World) -> None:
    world.cut("enable muster")
    with pytest.raises(Unavailable, match="head is not reachable"):
        world.rollout().deploy(["n1"])
    assert world.running("head") == ""
    world.cut("restart muster-node-n1")
    with pytest.raises(Unavailable, match="n1 is not reachable"):
        world.rollout().deploy(["n1"])
    assert (world.running("head"), world.running("n1")) == (world.first, "")
    world.cut("")
    world.state = "degraded"
    world.rollout().deploy(["n1"])
    assert (world.lives("head"), world.lives("n1")) == (["restart"], ["restart"])
    assert world.running("n1") == world.first


def test_an_upgrade_that_broke_off_after_the_switch_restarts_or_goes_back(world: World) -> None:
    world.rollout().deploy(["n1"])
    world.cut("restart muster-node-n1")
    with pytest.raises(Unavailable, match=f"not healthy with version {world.first} either"):
        world.rollout("second").upgrade(["n1"])
    assert (world.running("head"), world.running("n1")) == (world.second, world.first)
    assert not world.is_settled("n1")

    world.cut("")
    world.rollout("second").upgrade(["n1"])
    assert (world.running("n1"), world.is_settled("n1")) == (world.second, True)


def test_the_way_back_survives_an_interruption(world: World) -> None:
    world.rollout().deploy(["n1"])
    world.sick.add(world.second)
    world.cut("restart muster")
    with pytest.raises(Unavailable, match="not healthy with version"):
        world.rollout("second").upgrade(["n1"])
    world.cut("")
    with pytest.raises(Refused, match=f"head runs version {world.first} again"):
        world.rollout("second").upgrade(["n1"])
    assert (world.running("head"), world.is_settled("head")) == (world.first, True)
    assert world.lives("n1") == ["restart"]


@pytest.mark.parametrize("service", leaders.LED)
def test_a_version_with_a_service_that_does_not_start_goes_back(world: World, service: str) -> None:
    world.rollout().deploy(["n1"])
    world.leaderless[world.second] = service
    with pytest.raises(Refused, match=f"head runs version {world.first} again.*: {service}"):
        world.rollout("second").upgrade(["n1"])
    assert (world.running("head"), world.is_settled("head")) == (world.first, True)
    assert world.lives("n1") == ["restart"]


def test_a_head_whose_gateway_does_not_answer_is_upgraded(world: World) -> None:
    world.rollout().deploy([])
    world.sick.add(world.first)
    world.rollout("second").upgrade([])
    assert world.running("head") == world.second


def test_a_head_whose_gateway_does_not_show_the_services_is_upgraded(world: World) -> None:
    world.old.add(world.first)
    world.rollout().deploy([])
    world.rollout("second").upgrade([])
    assert (world.running("head"), world.is_settled("head")) == (world.second, True)


def test_a_head_goes_back_to_a_version_that_does_not_show_the_services(world: World) -> None:
    world.old.add(world.first)
    world.rollout().deploy(["n1"])
    world.leaderless[world.second] = "quota"
    with pytest.raises(Refused, match=f"head runs version {world.first} again.*: quota"):
        world.rollout("second").upgrade(["n1"])
    assert (world.running("head"), world.is_settled("head")) == (world.first, True)


def test_another_program_on_the_gateways_port_is_no_healthy_head(world: World) -> None:
    world.strangers.add(world.first)
    with pytest.raises(Unavailable, match="is no gateway"):
        world.rollout().deploy([])


@pytest.mark.parametrize("service", sorted(path.parent.name for path in SERVICES))
def test_a_version_with_a_service_that_cannot_be_imported_is_not_used(service: str) -> None:
    broken = f"import sys; sys.modules['services.{service}.__main__'] = None"
    done = subprocess.run(
        [sys.executable, "-c", f"{broken}{programs.TRIED}"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 1
    assert f"import of services.{service}.__main__ halted" in done.stderr


def test_a_wheel_that_is_not_the_heads_version_installs_nothing(world: World) -> None:
    world.rollout().deploy([])
    with pytest.raises(Refused, match=f"the head runs version {world.first}.*--upgrade"):
        world.rollout("second").deploy(["n1"])
    assert not (world.folder / "n1" / "prefix" / "current").exists()


def test_a_join_that_broke_off_goes_on_with_its_first_invitation(world: World) -> None:
    node = world.folder / "n1" / "state" / "node"
    (node / "agent.env").unlink()
    for _ in range(2):
        with pytest.raises(Refused, match="the token is incomplete"):
            world.rollout().deploy(["n1"])
    assert world.invitations == 2
    assert stat.S_IMODE((node / "invitation").stat().st_mode) == 0o600
    with pytest.raises(Refused, match=r"409: .*a name is used once"):
        world.rollout()._ask("/v1/nodes", {"node_id": "n1"})
