"""Installs versions beside each other on each machine, and switches between them.

A version is a virtual environment below PREFIX/versions; the link PREFIX/current names the one in
use, and every unit starts its program through the link. An upgrade goes machine by machine, the
head first: install, switch, restart, wait until healthy. A machine that does not become healthy
goes back to the version before, and the rollout stops. Jobs run on under their supervisors. Tests:
tests/integration/test_cluster_deploy.py.
"""

import hashlib
import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from libs.common.errors import MusterError, Refused, Unavailable
from libs.deploy import plan as p
from libs.deploy.plan import Plan
from libs.deploy.remote import Machine, quoted

HEAD: Final = "head"
HEAD_UNIT: Final = "muster"
POLL_S: Final = 1.0
VERSION_DIGITS: Final = 12
UNIT: Final = """[Unit]
Description=Muster: the log and all services
Wants=network-online.target
After=network-online.target

[Service]
Environment=MUSTER_PROFILE={state}/profile.json
EnvironmentFile=-{state}/head.env
ExecStart={prefix}/current/bin/muster up --state {state}/cluster {flags}
KillMode=mixed
TimeoutStopSec=90
Restart=always
RestartSec=2
LimitNOFILE=65536

[Install]
WantedBy=multi-user.target
"""
# Prints the answer of the gateway on the head; the profile has the key.
ASK: Final = """
import json, sys, urllib.request
key = json.load(open(sys.argv[1]))["key"]
body = sys.stdin.buffer.read() or None
headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
request = urllib.request.Request(sys.argv[2], body, headers)
sys.stdout.write(urllib.request.urlopen(request, timeout=20).read().decode())
"""
# Joins with the token from stdin, and writes the unit of the agent.
JOIN: Final = """
import sys
from pathlib import Path
from libs.common.messages.admission import invitation
from libs.join import agent
url, state, gpus, name, units = sys.argv[1:]
agent.join(url, invitation(sys.stdin.read().strip()), Path(state), int(gpus))
agent.write_unit(Path(state), name, Path(units))
"""

# A version whose programs cannot even be imported is never switched to.
TRIED: Final = "import libs.cli.main, libs.embedded.__main__, services.node_agent.__main__"

Say = Callable[[str], None]


class Rollout:
    """The machines of one plan."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self.plan = plan
        self.say = say
        self.wheel = Path(plan.wheel).read_bytes()
        self.version = hashlib.sha256(self.wheel).hexdigest()[:VERSION_DIGITS]
        self.head = Machine(HEAD, plan.head.ssh, plan.ssh_options)
        self.machines = {
            name: Machine(name, node.ssh, plan.ssh_options) for name, node in plan.nodes.items()
        }

    def check(self, names: list[str]) -> None:
        """Check every machine before anything is changed. Raises Refused with all faults."""
        wrong = []
        for machine in (self.head, *(self.machines[name] for name in names)):
            try:
                self._check(machine)
            except MusterError as error:
                wrong.append(str(error))
        if wrong:
            raise Refused("nothing was changed: " + "; ".join(wrong))

    def _check(self, machine: Machine) -> None:
        python = quoted(self.plan.python)
        machine.run(
            f"{python} -c 'import sys, venv, ensurepip; assert sys.version_info >= (3, 11)'"
        )
        machine.run(f"command -v {quoted(self.plan.systemctl)}")
        folders = " ".join(map(quoted, (self.plan.prefix, self.plan.state, self.plan.units)))
        machine.run(f"mkdir -p {folders} && test -w {quoted(self.plan.prefix)}")

    def deploy(self, names: list[str]) -> None:
        """Install the head and these nodes, and start them; leave what is installed as it is."""
        self.check(names)
        if not self._is_installed(self.head):
            self._install(self.head)
            self._switch(self.head, self.version)
            self._write_head()
            self._systemctl(self.head, f"enable --now {HEAD_UNIT}")
        self._wait_head()
        for name in names:
            machine = self.machines[name]
            if not self._is_installed(machine):
                self._install(machine)
                self._switch(machine, self.version)
            if not self._has_joined(machine):
                self._join(name, machine)
            self._systemctl(machine, f"enable --now {_unit(name)}")
            self._wait_node(name)
        self.say(f"version {self.version} serves {len(names)} nodes")

    def upgrade(self, names: list[str]) -> None:
        """Upgrade the head, then these nodes, one after the other.

        Raises Refused after a machine went back to the version before.
        """
        self.check(names)
        self._upgrade(self.head, HEAD_UNIT, lambda: 0, lambda before: self._wait_head())
        for name in names:
            self._upgrade(
                self.machines[name],
                _unit(name),
                partial(self._incarnation, name),
                partial(self._wait_node, name),
            )
        self.say(f"all machines run version {self.version}")

    def _upgrade(
        self,
        machine: Machine,
        unit: str,
        life: Callable[[], int],
        wait: Callable[[int], None],
    ) -> None:
        """Upgrade one machine. `wait(n)` waits until it is healthy with a later life than n."""
        before = self._current(machine)
        if before == self.version:
            self.say(f"{machine.name}: version {self.version} already")
            wait(0)
            return
        if not before:
            raise Refused(f"{machine.name} has no version yet: run without --upgrade first")
        self._install(machine)
        begun = life()
        self._switch(machine, self.version)
        try:
            self._systemctl(machine, f"restart {unit}")
            wait(begun)
        except MusterError as error:
            self.say(f"{machine.name}: version {self.version} is not healthy: going back")
            self._switch(machine, before)
            self._systemctl(machine, f"restart {unit}")
            wait(begun)
            raise Refused(
                f"{machine.name} runs version {before} again, and the rollout stopped: {error}"
            ) from error
        self.say(f"{machine.name}: version {before} -> {self.version}")

    def status(self) -> list[str]:
        """Return one line for each machine: its version, its unit, and its state as a node."""
        try:
            states = {node["id"]: node["state"] for node in self._ask("/v1/nodes")["nodes"]}
        except MusterError as error:
            states = {}
            self.say(f"the gateway on the head does not answer: {error}")
        lines = [self._status(self.head, HEAD_UNIT, "answers" if states else "?")]
        for name, machine in self.machines.items():
            lines.append(self._status(machine, _unit(name), states.get(name, "unknown")))
        return lines

    def _status(self, machine: Machine, unit: str, state: str) -> str:
        try:
            version = self._current(machine) or "not installed"
            _, active, _ = machine.tried(f"{quoted(self.plan.systemctl)} is-active {unit}")
        except Unavailable as error:
            return f"{machine.name:<16} unreachable: {error}"
        newer = "" if version == self.version else f" (the wheel is {self.version})"
        return f"{machine.name:<16} {version}{newer}  unit {active.strip() or '?'}  {state}"

    def _place(self, version: str) -> str:
        return f"{self.plan.prefix}/versions/{version}"

    def _install(self, machine: Machine) -> None:
        """Make the version's environment; a half-made one is made again."""
        place, plan = self._place(self.version), self.plan
        if machine.tried(f"test -e {quoted(place)}/whole")[0] == 0:
            return
        self.say(f"{machine.name}: installing version {self.version}")
        wheel = f"{place}/{Path(plan.wheel).name}"
        options = " ".join(map(quoted, plan.venv_options))
        machine.run(
            f"rm -rf {quoted(place)} && mkdir -p {quoted(plan.prefix)}/versions && "
            f"{quoted(plan.python)} -m venv {options} {quoted(place)}"
        )
        machine.run(f"cat > {quoted(wheel)}", self.wheel)
        pip = " ".join(map(quoted, plan.pip_options))
        machine.run(f"{quoted(place)}/bin/python -m pip install -q {pip} {quoted(wheel)}")
        machine.run(f"{quoted(place)}/bin/python -P -c {quoted(TRIED)}")
        machine.run(f"touch {quoted(place)}/whole && sync")

    def _switch(self, machine: Machine, version: str) -> None:
        """Let the link name another version, at once."""
        link = quoted(f"{self.plan.prefix}/current")
        machine.run(
            f"ln -sfn {quoted(self._place(version))} {link}.next && mv -T {link}.next {link}"
        )

    def _current(self, machine: Machine) -> str:
        """Return the version in use; empty if there is none."""
        _, out, _ = machine.tried(f"readlink {quoted(self.plan.prefix)}/current")
        return out.strip().rpartition("/")[2]

    def _is_installed(self, machine: Machine) -> bool:
        return bool(self._current(machine))

    def _write_head(self) -> None:
        plan = self.plan
        settings = p.environment(plan.settings).encode()
        state = quoted(plan.state)
        self.head.run(f"mkdir -p {state} && chmod 711 {state} && cat > {state}/head.env", settings)
        flags = f"--nodes 0 --listen {plan.head.listen} --port {plan.port}"
        unit = UNIT.format(prefix=plan.prefix, state=plan.state, flags=flags)
        self.head.run(f"cat > {quoted(plan.units)}/{HEAD_UNIT}.service", unit.encode())
        self._systemctl(self.head, "daemon-reload")

    def _systemctl(self, machine: Machine, words: str) -> None:
        machine.run(f"{quoted(self.plan.systemctl)} {words}")

    def _has_joined(self, machine: Machine) -> bool:
        return machine.tried(f"test -e {quoted(self._node_state)}/agent.env")[0] == 0

    @property
    def _node_state(self) -> str:
        return f"{self.plan.state}/node"

    def _join(self, name: str, machine: Machine) -> None:
        self.say(f"{name}: joining")
        invited = self._ask("/v1/nodes", {"node_id": name})
        words = (
            invited["url"],
            self._node_state,
            self.plan.nodes[name].simulated_gpus,
            name,
            self.plan.units,
        )
        python = f"{quoted(self.plan.prefix)}/current/bin/python"
        line = f"{python} -P -c {quoted(JOIN)} {' '.join(map(quoted, words))}"
        machine.run(line, str(invited["token"]).encode())
        self._systemctl(machine, "daemon-reload")

    def _ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask the gateway from the head itself. Raises Refused, Unavailable."""
        python = f"{quoted(self.plan.prefix)}/current/bin/python"
        url = f"http://127.0.0.1:{self.plan.port}{path}"
        profile = f"{self.plan.state}/profile.json"
        line = f"{python} -c {quoted(ASK)} {quoted(profile)} {quoted(url)}"
        data = json.dumps(body).encode() if body is not None else b""
        return json.loads(self.head.run(line, data))

    def _wait_head(self) -> None:
        self._wait(HEAD, lambda: isinstance(self._ask("/v1/nodes")["nodes"], list))

    def _wait_node(self, name: str, after: int = 0) -> None:
        """Wait until the node is healthy with an agent that started after this incarnation."""

        def is_healthy() -> bool:
            node = self._ask(f"/v1/nodes/{name}")["node"]
            return bool(node["state"] == "healthy" and node["incarnation"] > after)

        self._wait(name, is_healthy)

    def _incarnation(self, name: str) -> int:
        return int(self._ask(f"/v1/nodes/{name}")["node"]["incarnation"])

    def _wait(self, name: str, is_healthy: Callable[[], bool]) -> None:
        deadline, fault = time.monotonic() + self.plan.health_s, "it does not report as healthy"
        while time.monotonic() < deadline:
            try:
                if is_healthy():
                    return
            except (MusterError, ValueError, LookupError) as error:
                fault = str(error)
            time.sleep(POLL_S)
        unit = _unit(name) if name != HEAD else HEAD_UNIT
        raise Unavailable(
            f"{name} is not healthy after {self.plan.health_s} s ({fault[-300:]}): see "
            f"`journalctl -u {unit}`"
        )


def _unit(name: str) -> str:
    return f"muster-node-{name}"
