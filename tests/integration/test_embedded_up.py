"""`up`, `down` and `clean` as a person calls them: one clear line for each thing that stands in the
way, and the order of a stop, with stand-ins for the services and the real nats-server.
"""

import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest

from libs.common.errors import Corrupt, Refused, TooNew, Unavailable
from libs.embedded import (
    commands,
    farewell,
    identity,
    living,
    plan,
    runfile,
    servers,
    shape,
)
from libs.embedded.shape import Options, Shape

WAIT_S = 30.0

# Runs `up` with scripts in the place of the services: each says when it is told to stop; the
# gateway answers /readyz.
STAND_INS = """
import sys
from pathlib import Path
from libs.embedded import commands, launcher, plan
from libs.embedded.processes import Spec
from libs.embedded.shape import Options

SERVICE = '''
import signal, sys, time
def stop(*_):
    open(sys.argv[2], 'a').write(sys.argv[1] + chr(10)); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
open(sys.argv[2] + '.began', 'a').write(sys.argv[1] + chr(10))
while True: time.sleep(0.05)
'''
GATEWAY = '''
import http.server, os, signal, sys
def begun():
    try: return len(open(sys.argv[2] + '.began').read().split())
    except OSError: return 0
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        # A process that has not begun would not hear that it is to stop.
        self.send_response(200 if begun() >= 5 else 503); self.end_headers()
        self.wfile.write(b'{"jobs": [{}, {}]}')
def stop(*_):
    open(sys.argv[2], 'a').write(sys.argv[1] + chr(10)); sys.exit(0)
signal.signal(signal.SIGTERM, stop)
http.server.HTTPServer(('127.0.0.1', int(sys.argv[3])), Ready).serve_forever()
'''
state, port = Path(sys.argv[1]), int(sys.argv[2])
def stand_in(name, script=SERVICE):
    argv = [sys.executable, '-c', script, name, str(state / 'stopped'), str(port)]
    return Spec(name, argv, {}, plan.logs(state) / (name + '.log'))
def control_plane(state, shape):
    quiet = [stand_in(name) for name in ('scheduler', 'quota', 'audit')]
    return [*quiet, stand_in('gateway', GATEWAY)]


plan.control_plane = control_plane
plan.agents = lambda state, shape: [stand_in(each) for each in shape.fleet.nodes]
launcher.LOG_S = 0.2
sys.exit(commands.up(Options(state=state, nodes=2, port=port)))
"""


@pytest.fixture(autouse=True)
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile" / "profile.json"
    monkeypatch.setenv("MUSTER_PROFILE", str(path))
    return path


@pytest.fixture
def running(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    process = start(tmp_path / "state")
    yield process
    if process.poll() is None:
        process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def start(state: Path) -> "subprocess.Popen[str]":
    port = servers.free_ports(1)[0]
    command = [sys.executable, "-c", STAND_INS, str(state), str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if "  stop     `" in line:
            return process
    raise AssertionError("".join(lines))


def ended(state: Path) -> list[str]:
    return (state / "stopped").read_text().split()


def test_stop_ends_scheduler_agents_and_gateway_in_this_order(
    running: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    running.send_signal(signal.SIGINT)
    assert running.wait(WAIT_S) == 0
    order = ended(tmp_path / "state")
    assert (
        order[0] == "scheduler"
        and sorted(order[1:3]) == ["node-1", "node-2"]
        and order[3] == "gateway"
    )
    assert sorted(order[4:]) == ["audit", "quota"]
    assert not runfile.run_file(tmp_path / "state").exists()


def test_down_stops_the_cluster_and_a_second_down_finds_none(
    running: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = Options(state=tmp_path / "state")
    assert commands.down(options) == 0
    said = capsys.readouterr().out
    assert "has stopped. 2 jobs go on under supervisors for up to 10 min" in said
    assert running.wait(WAIT_S) == 0
    assert commands.down(options) == 0
    assert "no cluster runs in" in capsys.readouterr().out


def test_farewell_counts_the_jobs_if_the_gateway_told_their_number(tmp_path: Path) -> None:
    assert farewell.words(0, 60_000) == "No job was running."
    assert farewell.words(1, 60_000).startswith("1 job goes on under supervisors for up to 1 min")
    assert farewell.words(None, 60_000).startswith("Running jobs go on")
    assert farewell.running_jobs(tmp_path, Shape(cluster_id="c", port=1)) is None


def test_second_up_reports_the_running_cluster(
    running: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    with pytest.raises(Refused, match=f"in use by a running cluster .pid {running.pid}"):
        commands.up(Options(state=tmp_path / "state"))


def test_clean_refuses_while_it_runs(running: "subprocess.Popen[str]", tmp_path: Path) -> None:
    with pytest.raises(Refused, match="running cluster"):
        commands.clean(Options(state=tmp_path / "state", yes=True))


def test_no_process_outlives_a_killed_launcher(
    running: "subprocess.Popen[str]", tmp_path: Path
) -> None:
    deadline = time.monotonic() + WAIT_S
    while not ((known := runfile.read(tmp_path / "state")) and known.ready):
        assert time.monotonic() < deadline  # it is announced a moment before
    assert len(known.children) == 7
    running.kill()
    running.wait()
    assert living.wait_gone(list(known.children.values()), WAIT_S)
    again = start(tmp_path / "state")
    again.send_signal(signal.SIGTERM)
    assert again.wait(WAIT_S) == 0
    assert again.stdout is not None
    again.stdout.close()


def test_keys_and_profile_are_readable_by_their_owner_only(
    running: "subprocess.Popen[str]", tmp_path: Path, profile: Path
) -> None:
    private = [
        profile,
        *(tmp_path / "state" / "keys").iterdir(),
        tmp_path / "state" / "nats-server.conf",
    ]
    assert {stat.S_IMODE(path.stat().st_mode) for path in private} == {0o600}
    key = msgspec.json.decode(profile.read_bytes())["key"]
    assert key.startswith("mk_")
    assert (tmp_path / "state" / "keys" / "api_keys").read_text().split() == [identity.digest(key)]
    everything = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert not [path for path in everything if key.encode() in path.read_bytes()]


def test_port_in_use_is_reported_with_its_flag(tmp_path: Path) -> None:
    with socket.socket() as other:
        port = servers.free_port_run(2) + 1
        other.bind(("127.0.0.1", port))
        other.listen()
        with pytest.raises(
            Refused, match=f"port {port} of 127.0.0.1 is in use: choose another with --port"
        ):
            commands.up(Options(state=tmp_path / "state", port=port))
        with pytest.raises(Refused, match=f"port {port} of 127.0.0.1 is in use"):
            commands.up(Options(state=tmp_path / "two", port=port - 1, gateways=2))


def test_failed_first_start_leaves_no_state_directory(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(Refused, match="is in use"):
            commands.up(Options(state=tmp_path / "state", port=other.getsockname()[1]))
    with pytest.raises(Refused, match="out of range"):
        commands.up(Options(state=tmp_path / "state", nodes=-1))
    assert not (tmp_path / "state").exists()


def test_failed_start_removes_nothing_that_was_there_before(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    with pytest.raises(Refused, match="out of range"):
        commands.up(Options(state=tmp_path / "state", nodes=-1))
    assert (tmp_path / "state").exists()


def test_a_start_in_the_background_that_is_not_ready_in_time_is_an_error_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "BACKGROUND_S", 0.1)
    monkeypatch.setattr(commands, "_command", lambda options: ["sleep", "1"])
    with pytest.raises(Unavailable, match=r"is not ready .* goes on starting: see .*launcher.log"):
        commands.up(Options(state=tmp_path / "state", foreground=False))
    assert (tmp_path / "state").exists()


def test_port_of_another_cluster_of_this_user_is_reported_with_its_directory(
    running: "subprocess.Popen[str]", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, second = tmp_path / "state", tmp_path / "second"
    known = shape.load(state)
    assert known is not None
    with pytest.raises(
        Refused, match=f"in use by your cluster in {state}: .* `muster down --state {state}`"
    ):
        commands.up(Options(state=second, port=known.port))
    assert not second.exists()
    assert commands.up(Options(state=second, port=known.port, foreground=False)) != 0
    assert not second.exists() and "in use by your cluster" in capsys.readouterr().out
    assert commands.down(Options(state=second)) == 0
    assert f"use `muster down --state {state}`" in capsys.readouterr().out


def test_each_gateway_has_its_own_port_key_and_directory(tmp_path: Path) -> None:
    found = shape.prepare(Options(state=tmp_path, port=7_000, gateways=2))
    assert found == shape.Shape(
        cluster_id=found.cluster_id, log_bytes=found.log_bytes, port=7_000, gateways=2
    )
    told = {
        each.name: each.environment
        for each in plan.control_plane(tmp_path, found)
        if each.name in plan.gateways(found)
    }
    assert [each["MUSTER_GATEWAY_PORT"] for each in told.values()] == ["7000", "7001"]
    for variable in ("MUSTER_INSTANCE", "MUSTER_NKEY_SEED_FILE", "MUSTER_STATE"):
        assert len({each.get(variable, "a") for each in told.values()}) == 2
    for gateways in (0, 9):
        with pytest.raises(Refused, match=f"--gateways {gateways} is out of range: use 1 to 8"):
            shape.prepare(Options(state=tmp_path / "other", gateways=gateways))


def test_address_of_another_machine_is_reported_as_such(tmp_path: Path) -> None:
    for host in ("192.0.2.1", "no.such.host.invalid"):
        with pytest.raises(
            Refused, match=f"{host} is not an address of this machine: choose another with --host"
        ):
            commands.up(Options(state=tmp_path / "state", host=host))


def write_shape(state: Path, text: bytes) -> None:
    state.mkdir()
    shape.shape_file(state).write_bytes(text)


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [
        (b"{", Corrupt, "cannot be read"),
        (b'{"format":"other"}', Corrupt, "cluster_id"),
        (b'{"format":"other","cluster_id":"x"}', Corrupt, "belongs to another program"),
        (b'{"format":"muster-embedded","version":9}', TooNew, "upgrade this one"),
    ],
)
def test_foreign_state_directory_is_left_alone(
    tmp_path: Path, text: bytes, error: type[Exception], says: str
) -> None:
    state = tmp_path / "state"
    write_shape(state, text)
    for verb in (commands.up, commands.clean):
        with pytest.raises(error, match=says):
            verb(Options(state=state, yes=True))
    assert [path.name for path in state.iterdir()] == ["cluster.json"]


def test_interrupted_first_start_can_be_repeated(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "lock").write_text("123")
    assert shape.prepare(Options(state=tmp_path)).nodes == 4


def test_directory_with_other_files_is_never_used_or_removed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    for verb in (commands.up, commands.clean):
        with pytest.raises(Corrupt, match="is not the state of a cluster"):
            verb(Options(state=tmp_path, yes=True))
    assert (tmp_path / "precious").exists()


def test_state_path_that_is_a_file_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(Refused, match="choose another with --state"):
        commands.up(Options(state=tmp_path / "file"))


def test_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shape, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(Refused, match="MiB are free under"):
        commands.up(Options(state=tmp_path / "state"))


def test_damaged_seed_is_reported(tmp_path: Path) -> None:
    identity.write_private(tmp_path / "quota.seed", "nonsense")
    with pytest.raises(Corrupt, match="holds no nkey seed: remove it"):
        identity.public_key(tmp_path, "quota")


def test_seed_is_created_once_and_kept(tmp_path: Path) -> None:
    assert identity.public_key(tmp_path, "quota") == identity.public_key(tmp_path, "quota")
    assert identity.public_key(tmp_path, "quota") != identity.public_key(tmp_path, "audit")


def test_known_api_key_is_kept_and_a_foreign_one_replaced(tmp_path: Path) -> None:
    key = identity.api_key(tmp_path, "")
    assert identity.api_key(tmp_path, key) == key
    assert identity.api_key(tmp_path, "mk_of-another-cluster") != key
    assert identity.digest(key) in identity.api_keys_file(tmp_path).read_text()


def test_last_shape_applies_unless_flags_change_it(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = shape.prepare(Options(state=state, nodes=2, gpus=3))
    shape.save(state, first)
    assert shape.prepare(Options(state=state)) == first
    assert shape.prepare(Options(state=state, nodes=5)) == msgspec.structs.replace(first, nodes=5)


@pytest.mark.parametrize("asked", [{"nodes": 0}, {"gpus": -1}, {"port": 70_000}])
def test_invalid_shape_is_refused(tmp_path: Path, asked: Mapping[str, int]) -> None:
    with pytest.raises(Refused, match="out of range"):
        shape.prepare(msgspec.structs.replace(Options(state=tmp_path / "state"), **asked))


def test_each_process_gets_its_own_key_and_needed_variables_only(tmp_path: Path) -> None:
    found = Shape(cluster_id="c", nodes=2, gpus=3, nats_port=5)
    environ = {"PATH": "/bin", "SECRET": "x", "MUSTER_LEASE_MS": "5000", "MUSTER_API_KEY": "mk_x"}
    specs = {
        spec.name: spec.environment
        for spec in (
            *plan.control_plane(tmp_path, found, environ),
            *plan.agents(tmp_path, found, environ),
        )
    }
    assert list(specs) == ["scheduler", "quota", "audit", "gateway", "node-1", "node-2"]
    seeds = [environment["MUSTER_NKEY_SEED_FILE"] for environment in specs.values()]
    assert len(dict.fromkeys(seeds)) == 6
    assert all(environment["MUSTER_LEASE_MS"] == "5000" for environment in specs.values())
    assert not [
        environment
        for environment in specs.values()
        if "SECRET" in environment or "MUSTER_API_KEY" in environment
    ]
    assert (
        specs["node-2"]["MUSTER_NODE_ID"] == "node-2"
        and specs["node-2"]["MUSTER_SIMULATED_GPUS"] == "3"
    )
    assert [
        name for name, environment in specs.items() if "MUSTER_API_KEYS_FILE" in environment
    ] == ["gateway"]


def test_start_reports_exactly_the_nodes_of_the_cluster() -> None:
    found = Shape(cluster_id="c", nodes=2, gpus=3, model="H100")
    own = msgspec.structs.replace(found, nodes=0, local=True)
    both, none = (
        msgspec.structs.replace(found, local=True),
        msgspec.structs.replace(found, nodes=0, listen="10.0.0.1"),
    )
    assert found.words == "2 nodes with 3 x H100 each"
    assert own.words == "this machine's own GPUs"
    assert both.words == "2 nodes with 3 x H100 each and this machine's own GPUs"
    assert none.words == "no nodes of its own"
