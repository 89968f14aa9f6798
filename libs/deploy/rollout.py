"""Installs versions beside each other on each machine, and switches between them.

A version is a virtual environment below PREFIX/versions; the link PREFIX/current names the one in
use, and every unit starts its program through the link. An upgrade goes machine by machine, the
head first: install, switch, restart, wait until healthy. A machine that does not become healthy
goes back to the version before, and the rollout stops. Jobs run on under their supervisors.

Every command may be interrupted and repeated: `change.py` records a change until the machine is
healthy. Tests: tests/integration/test_rollout.py and test_cluster_deploy.py.
"""

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

from libs.common.errors import MusterError, Refused, Unavailable
from libs.common.life import node_life
from libs.deploy import change, leaders, programs
from libs.deploy import plan as p
from libs.deploy.leaders import Leaders, terms
from libs.deploy.plan import Plan
from libs.deploy.remote import Machine, quoted
from libs.embedded.shape import REPLICATED

HEAD: Final = "head"
HEAD_UNIT: Final = "muster"
POLL_S: Final = 1.0
VERSION_DIGITS: Final = 12

Say = Callable[[str], None]
# A number for each process of a machine, larger after its next start: the term of a service, the
# incarnation of an agent. Empty: not known, so every start counts as a later one.
Starts = Mapping[str, int]


@dataclass(frozen=True)
class Target:
    """A machine and its unit.

    `starts` returns the present starts. `wait(before)` waits until the machine is healthy with
    later starts than these.
    """

    machine: Machine
    unit: str
    starts: Callable[[], Starts]
    wait: Callable[[Starts], None]


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
        """Install the head and these nodes, write their files, and restart what has changed.

        A machine that has a version keeps it. Raises Refused if the head has another version than
        the wheel's.
        """
        self.check(names)
        used = self._current(self.head)
        if used not in ("", self.version):
            raise Refused(
                f"the head runs version {used} and the wheel is {self.version}: run with --upgrade "
                f"first, or name the wheel of {used} in the configuration"
            )
        self._install(self.head)
        self._write_head()
        self._bring(self._target(HEAD), self.version)
        for name in names:
            self._deploy_node(name)
        self.say(f"the head and {len(names)} nodes are healthy")

    def _deploy_node(self, name: str) -> None:
        machine = self.machines[name]
        has_joined = self._has_joined(machine)
        if not has_joined or not self._current(machine):
            self._install(machine)
            self._switch(machine, self.version)
        if not has_joined:
            self._join(name, machine)
        version = self._current(machine)
        if version != self.version:
            self.say(f"{name}: runs version {version}: run with --upgrade to change it")
        self._write_node(name, machine)
        self._bring(self._target(name), version)

    def upgrade(self, names: list[str]) -> None:
        """Upgrade the head, then these nodes, one after the other. Files stay as they are.

        Raises Refused after a machine went back to the version before.
        """
        self.check(names)
        if not self._has_unit(self.head, HEAD_UNIT):
            raise Refused("the head is not installed: run without --upgrade first")
        for name in (HEAD, *names):
            target = self._target(name)
            if self._has_unit(target.machine, target.unit):
                self._bring(target, self.version)
            else:
                self.say(f"{name}: not installed, skipped: run without --upgrade afterwards")
        self.say(f"all installed machines run version {self.version}")

    def _target(self, name: str) -> Target:
        if name == HEAD:
            return Target(self.head, HEAD_UNIT, self._head_starts, self._wait_head)
        return Target(
            machine=self.machines[name],
            unit=_unit(name),
            starts=partial(self._node_starts, name),
            wait=partial(self._wait_node, name),
        )

    def _bring(self, target: Target, version: str) -> None:
        """Let a machine run this version; restart it only after a change.

        Raises Refused after the machine went back to the version before.
        """
        machine, current = target.machine, self._current(target.machine)
        if version == current and change.unfinished(machine, self.plan.prefix) is None:
            self._start(target, "start")
            target.wait({})
            self.say(f"{machine.name}: version {version} already")
            return
        if version == self.version:
            self._install(machine)
        begun = target.starts()
        before = change.begin(machine, self.plan.prefix)
        self._switch(machine, version)
        try:
            self._start(target, "restart")
            target.wait(begun)
        except MusterError as error:
            if before in ("", version):
                raise
            self._go_back(target, before, begun=begun, fault=f"version {version} failed: {error}")
        change.end(machine, self.plan.prefix)
        self.say(f"{machine.name}: restarted with version {version} (before: {before or 'none'})")

    def _go_back(self, target: Target, before: str, begun: Starts, fault: str) -> NoReturn:
        """Let a machine run the version before again. Raises Refused with the fault.

        Raises Unavailable if the machine is not healthy with that version either.
        """
        machine = target.machine
        self.say(f"{machine.name}: {fault}: going back to version {before}")
        try:
            self._switch(machine, before)
            self._start(target, "restart")
            target.wait(begun)
        except MusterError as error:
            raise Unavailable(
                f"{machine.name} is not healthy with version {before} either: {error}. Before "
                f"that, {fault}. Repair the machine, then repeat the command"
            ) from error
        change.end(machine, self.plan.prefix)
        raise Refused(f"{machine.name} runs version {before} again, the rollout stopped: {fault}")

    def _start(self, target: Target, verb: str) -> None:
        """Start or restart the unit with its present files. It starts at each boot too."""
        systemctl = quoted(self.plan.systemctl)
        words = ("daemon-reload", f"enable {target.unit}", f"{verb} {target.unit}")
        target.machine.run(" && ".join(f"{systemctl} {each}" for each in words))

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
            changing = change.unfinished(machine, self.plan.prefix) is not None
        except Unavailable as error:
            return f"{machine.name:<16} unreachable: {error}"
        newer = "" if version == self.version else f" (the wheel is {self.version})"
        broken_off = "  a change did not end: repeat the command" if changing else ""
        return (
            f"{machine.name:<16} {version}{newer}  unit {active.strip() or '?'}  {state}"
            f"{broken_off}"
        )

    def _install(self, machine: Machine) -> None:
        """Make the version's environment; a half-made one is made again."""
        place, plan = change.place(self.plan.prefix, self.version), self.plan
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
        machine.run(f"{quoted(place)}/bin/python -P -c {quoted(programs.TRIED)}")
        machine.run(f"touch {quoted(place)}/whole && sync")

    def _current(self, machine: Machine) -> str:
        return change.current(machine, self.plan.prefix)

    def _switch(self, machine: Machine, version: str) -> None:
        change.switch(machine, self.plan.prefix, version)

    def _put(self, machine: Machine, path: str, text: str, mode: str) -> None:
        """Write a file that the unit reads at its start. Other content begins a change."""
        if change.differs(machine, path, text):
            self.say(f"{machine.name}: writing {path}")
            change.begin(machine, self.plan.prefix)
        change.put(machine, path, text=text, mode=mode)

    def _write_head(self) -> None:
        plan, state = self.plan, quoted(self.plan.state)
        self.head.run(f"mkdir -p {state} && chmod 711 {state}")
        settings = p.environment(plan.settings)
        self._put(self.head, f"{plan.state}/head.env", text=settings, mode=change.PRIVATE)
        processes = " ".join(f"--{name} {getattr(plan.head, name)}" for name in REPLICATED)
        flags = f"--nodes 0 --listen {plan.head.listen} --port {plan.port} {processes}"
        unit = programs.UNIT.format(prefix=plan.prefix, state=plan.state, flags=flags)
        self._put(self.head, self._unit_file(HEAD_UNIT), text=unit, mode=change.PUBLIC)

    def _write_node(self, name: str, machine: Machine) -> None:
        words = " ".join(map(quoted, (programs.AGENT_UNIT, self._node_state, name)))
        unit = machine.run(f"{self._python} -P -c {words}")
        self._put(machine, self._unit_file(_unit(name)), text=unit, mode=change.PUBLIC)

    def _unit_file(self, unit: str) -> str:
        return f"{self.plan.units}/{unit}.service"

    def _has_unit(self, machine: Machine, unit: str) -> bool:
        return machine.tried(f"test -e {quoted(self._unit_file(unit))}")[0] == 0

    @property
    def _python(self) -> str:
        """The Python of the version in use, as a word of the shell."""
        return f"{quoted(self.plan.prefix)}/current/bin/python"

    def _has_joined(self, machine: Machine) -> bool:
        return machine.tried(f"test -e {quoted(self._node_state)}/agent.env")[0] == 0

    @property
    def _node_state(self) -> str:
        return f"{self.plan.state}/node"

    def _join(self, name: str, machine: Machine) -> None:
        """Let the machine join. An invitation stays on it until then, because it may be in use.

        A cluster that knows the machine's key gives its name to no other invitation.
        """
        self.say(f"{name}: joining")
        kept = f"{self._node_state}/invitation"
        try:
            invited = self._ask("/v1/nodes", {"node_id": name})
        except Refused:
            if machine.tried(f"test -e {quoted(kept)}")[0]:
                raise
        else:
            machine.run(f"umask 077 && mkdir -p {quoted(self._node_state)}")
            change.put(machine, kept, text=json.dumps(invited), mode=change.PRIVATE)
        words = (programs.JOIN, self._node_state, self.plan.nodes[name].simulated_gpus)
        machine.run(f"{self._python} -P -c {' '.join(map(quoted, words))}")

    def _ask(self, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        """Ask the gateway from the head itself; None if a GET finds nothing. Raises Refused."""
        url = f"http://127.0.0.1:{self.plan.port}{path}"
        words = (programs.ASK, f"{self.plan.state}/profile.json", url)
        data = json.dumps(body).encode() if body is not None else b""
        return json.loads(self.head.run(f"{self._python} -c {' '.join(map(quoted, words))}", data))

    def _wait_head(self, before: Starts) -> None:
        """Wait until every service has kept a leader that began a later term than before."""
        kept = Leaders(before)

        def is_healthy() -> bool:
            try:
                shown = self._cluster()
            except MusterError:
                kept.forget()
                raise
            return kept.are_kept(shown, time.monotonic_ns())

        self._wait(HEAD, is_healthy)

    def _head_starts(self) -> Starts:
        """Return the newest terms of the services; none if the gateway does not show them."""
        try:
            return terms(self._cluster())
        except (MusterError, ValueError, LookupError):
            return {}

    def _cluster(self) -> leaders.Shown | None:
        """Return what the head's gateway shows of its services; None if it is too old for that."""
        shown: leaders.Shown | None = self._ask("/v1/cluster")
        if shown is None and self._ask("/v1/nodes") is None:
            raise Unavailable(f"what answers on port {self.plan.port} of the head is no gateway")
        return shown

    def _wait_node(self, name: str, before: Starts) -> None:
        """Wait until the node takes work with an agent that started later than before."""

        def is_healthy() -> bool:
            found = self._ask(f"/v1/nodes/{name}")
            if found is None:
                return False
            node = found["node"]
            is_later = node["incarnation"] > before.get(name, 0)
            return bool(node["state"] in node_life.USABLE and is_later)

        self._wait(name, is_healthy)

    def _node_starts(self, name: str) -> Starts:
        """Return the incarnation of the node's agent; none if no agent has registered."""
        found = self._ask(f"/v1/nodes/{name}")
        return {name: int(found["node"]["incarnation"])} if found is not None else {}

    def _wait(self, name: str, is_healthy: Callable[[], bool]) -> None:
        deadline, fault = time.monotonic() + self.plan.health_s, "it is not healthy for long enough"
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
