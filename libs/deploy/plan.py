"""The configuration of a deployment: machines, folders, and how to reach them.

Tests: tests/unit/test_deploy_plan.py.
"""

import re
from pathlib import Path
from typing import Final

import msgspec
import yaml

from libs.common.errors import Refused
from libs.embedded.shape import INSTANCES, REPLICATED

NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
# An ssh destination: no blanks, and no leading dash, which ssh would take for an option.
DESTINATION: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@:%\[\]-]{0,254}")
SETTING: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
FOLDER: Final = re.compile(r"/[A-Za-z0-9_./-]{1,200}")
ESCAPED: Final = str.maketrans({"\\": "\\\\", '"': '\\"'})
# The services of a healthy head keep their leaders for some seconds (`leaders.py`).
HEALTH_MIN_S: Final = 30
HEALTH_MAX_S: Final = 86_400
NODES_MAX: Final = 2_000
EXAMPLE: Final = """\
# A cluster of one head, which runs the log and all services, and nodes. Edit, then run
#   scripts/cluster_deploy.py --config cluster.yaml
# `python -m pip wheel --no-deps -w dist .` builds the wheel.
wheel: dist/muster_gpu-0.1.0-py3-none-any.whl
head:
  ssh: root@10.0.0.1
  listen: 10.0.0.1            # the address that the nodes reach
  # schedulers: 2             # processes of the service, 1 to 3: one leads, another takes over
  # quotas: 2
  # audits: 2
nodes:
  gpu-01: {ssh: root@10.0.0.11}
  gpu-02: {ssh: root@10.0.0.12}
# ssh_options: [-i, ~/.ssh/muster]
# prefix: /opt/muster         # versions are installed here
# state: /var/lib/muster      # the log, keys and jobs
# python: python3             # 3.11 or newer
# port: 8080                  # of the gateway, on the head's loopback
# pip_options: []             # for `pip install`, for example a mirror
# settings: {log_level: INFO} # of all services on the head (docs/settings.md)
"""


class Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The machine that runs `muster up`, and how many processes of each service it runs."""

    ssh: str
    listen: str
    schedulers: int = 2
    quotas: int = 2
    audits: int = 2


class NodeMachine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A machine that joins. `simulated_gpus` replaces its own GPUs."""

    ssh: str
    simulated_gpus: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole deployment.

    `venv_options` are for `python -m venv`, `units` is the folder of systemd's units, `systemctl`
    the command. `health_s` is how long a machine may take to be healthy after a restart.
    """

    wheel: str
    head: Head
    nodes: dict[str, NodeMachine] = {}
    ssh_options: tuple[str, ...] = ()
    prefix: str = "/opt/muster"
    state: str = "/var/lib/muster"
    python: str = "python3"
    port: int = 8080
    venv_options: tuple[str, ...] = ()
    pip_options: tuple[str, ...] = ()
    settings: dict[str, str] = {}
    units: str = "/etc/systemd/system"
    systemctl: str = "systemctl"
    health_s: int = 120


def load(path: Path) -> Plan:
    """Return the plan in a file. Raises Refused with every fault that it has."""
    try:
        raw = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Refused(
            f"{path} cannot be read ({error.strerror}): `--init {path}` writes an example"
        ) from error
    except yaml.YAMLError as error:
        raise Refused(f"{path} is not valid YAML: {error}") from error
    try:
        plan = msgspec.convert(raw, Plan, strict=False)
    except msgspec.ValidationError as error:
        raise Refused(f"{path}: {error}; `--init FILE` writes an example") from error
    if wrong := faults(plan):
        raise Refused(f"{path}: " + "; ".join(wrong))
    return plan


def faults(plan: Plan) -> list[str]:
    """Return what is wrong with a plan, one text for each fault."""
    found = []
    for name, node in plan.nodes.items():
        if NAME.fullmatch(name) is None:
            found.append(f"nodes: {name[:64]!r} is not a name: use a-z, 0-9 and - (at most 63)")
        if not 0 <= node.simulated_gpus <= 64:
            found.append(f"nodes.{name[:64]}.simulated_gpus: use 0 to 64")
    machines = {"head": plan.head.ssh, **{name: node.ssh for name, node in plan.nodes.items()}}
    for name, ssh in machines.items():
        if DESTINATION.fullmatch(ssh) is None:
            found.append(f"{name[:64]}.ssh: {ssh[:64]!r} is not an ssh destination: use user@host")
    for name in REPLICATED:
        if not 1 <= (number := getattr(plan.head, name)) <= len(INSTANCES):
            found.append(f"head.{name}: {number} is out of range: use 1 to {len(INSTANCES)}")
    if not HEALTH_MIN_S <= plan.health_s <= HEALTH_MAX_S:
        found.append(
            f"health_s: {plan.health_s} is out of range: use {HEALTH_MIN_S} to {HEALTH_MAX_S}"
        )
    if len(plan.nodes) > NODES_MAX:
        found.append(f"nodes: {len(plan.nodes)} are more than {NODES_MAX}")
    for field in ("prefix", "state", "units"):
        if FOLDER.fullmatch(getattr(plan, field)) is None:
            found.append(
                f"{field}: {getattr(plan, field)!r} is not an absolute path of a-z, 0-9, _ . - /"
            )
    for name, value in plan.settings.items():
        if SETTING.fullmatch(name) is None:
            found.append(
                f"settings: {name[:64]!r} is not a setting: use the name in small letters without "
                "MUSTER_, for example log_level"
            )
        if CONTROL.search(value):
            found.append(f"settings.{name[:64]}: the value has a control character: remove it")
    if not Path(plan.wheel).is_file() or not plan.wheel.endswith(".whl"):
        found.append(f"wheel: {plan.wheel} does not exist: build it with pip wheel --no-deps .")
    if not 1 <= plan.port <= 65_535:
        found.append(f"port: {plan.port} is out of range: use 1 to 65535")
    return found


def chosen(plan: Plan, nodes: str) -> list[str]:
    """Return the names of the nodes in a list with commas, or all. Raises Refused."""
    names = [name for name in nodes.split(",") if name] if nodes not in ("", "all") else []
    unknown = [name for name in names if name not in plan.nodes]
    if unknown:
        raise Refused(f"--nodes: {', '.join(unknown)} is not in the configuration")
    return names or list(plan.nodes)


def environment(settings: dict[str, str]) -> str:
    """Return settings as lines of an environment file of systemd.

    The file format takes a backslash in quotes as an escape, and # or a quote outside of them.
    """
    return "".join(
        f'MUSTER_{name.upper()}="{value.translate(ESCAPED)}"\n' for name, value in settings.items()
    )
