"""The files of a joined machine, and the start of its agent: in the foreground or by systemd.

One directory of mode 0700 holds the node's nkey (created here, never sent), the authority's
certificate and the agent's settings. The unit has KillMode=process: jobs run under their own
supervisors, and a restart of the agent must not end them.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from libs.common.errors import Refused
from libs.common.messages.admission import Invitation
from libs.common.settings import settings
from libs.common.settings.configuration import ENV_FILE
from libs.common.settings.settings import Settings
from libs.embedded import identity
from libs.join import exchange

SEED: Final = "node"
# Other users cannot enter this directory. They can pass the state directory, on the way to the
# directories of their jobs.
KEYS: Final = "keys"
CA_FILE: Final = "ca.pem"
SETTINGS_FILE: Final = "agent.env"
UNITS: Final = Path("/etc/systemd/system")
UNIT: Final = """[Unit]
Description=Muster node agent {node_id}
Wants=network-online.target
After=network-online.target

[Service]
EnvironmentFile={settings}
ExecStart={python} -P -m services.node_agent
KillMode=process
Restart=always
RestartSec=2
RestartPreventExitStatus={refused}
LimitNOFILE=65536
Delegate=yes

[Install]
WantedBy=multi-user.target
"""


def default_state() -> Path:
    """Return root's state directory for the machine, or the user's own."""
    if os.geteuid() == 0:
        return Path("/var/lib/muster/node")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "muster/node"


def join(url: str, token: Invitation, state: Path, simulated_gpus: int) -> Settings:
    """Join the cluster and store what the agent needs. Raises Refused, Unavailable."""
    known = state / SETTINGS_FILE
    if known.exists():
        raise Refused(
            f"{known} exists: this machine has already joined. Start that node with `muster join "
            "--again`, or choose another directory with --state"
        )
    pem, address = exchange.authority(url, token), exchange.own_address(url)
    try:
        state.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = exchange.introduce(
            url,
            pem,
            invitation=token,
            public_key=identity.public_key(state / KEYS, SEED),
            address=address,
        )
        identity.write_private(state / CA_FILE, pem)
        node_settings = _settings(state.resolve(), found, address, simulated_gpus)
        identity.write_private(known, _as_file(node_settings))
    except OSError as error:
        raise Refused(
            f"{state} cannot be written ({error.strerror}): choose another directory with --state"
        ) from error
    return node_settings


def _settings(state: Path, found: Mapping[str, Any], address: str, simulated_gpus: int) -> Settings:
    return Settings(
        node_id=found["node_id"],
        cluster_id=found["cluster_id"],
        nats=found["nats"],
        nats_ca_file=str(state / CA_FILE),
        nkey_seed_file=str(identity.seed_file(state / KEYS, SEED)),
        state=str(state),
        node_address=address,
        gpu_driver="simulated" if simulated_gpus else "local",
        simulated_gpus=simulated_gpus,
    )


def _as_file(node_settings: Settings) -> str:
    """Return the settings as an environment file of systemd; `kept` reads it too."""
    defaults = settings.environment(Settings())
    values = settings.environment(node_settings)
    return "\n".join(
        f"{name}={value}"
        for name, value in values.items()
        if value != defaults[name] or name == "MUSTER_SIMULATED_GPUS"
    )


def kept(state: Path) -> dict[str, str]:
    """Return the agent's variables. Raises Refused if this machine has not joined."""
    try:
        lines = (state / SETTINGS_FILE).read_text().splitlines()
    except OSError as error:
        raise Refused(
            f"{state} holds no node ({error.strerror}): join first. `muster node add` on the "
            "cluster prints the command."
        ) from error
    return dict(line.split("=", 1) for line in lines if "=" in line)


def exec_agent(state: Path) -> None:
    """Replace this process by the agent."""
    environ = {**os.environ, ENV_FILE: "", **kept(state)}
    os.execve(sys.executable, [sys.executable, "-P", "-m", "services.node_agent"], environ)


def write_unit(state: Path, node_id: str, units: Path = UNITS) -> Path:
    """Write the systemd unit and return its path. Raises Refused if it cannot be written."""
    path = units / f"muster-node-{node_id}.service"
    text = UNIT.format(
        node_id=node_id,
        settings=(state / SETTINGS_FILE).resolve(),
        python=sys.executable,
        refused=Refused.exit_code,
    )
    try:
        path.write_text(text)
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}): run as root, or use --foreground"
        ) from error
    return path
