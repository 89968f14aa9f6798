"""A twin of `systemctl` for machines without systemd: the few verbs of libs/deploy, by unit files.

`systemctl_twin.py UNITS VERB ...`. A unit runs under a keeper that starts it again, as with
Restart=always. Its pid is in UNITS/NAME.pid.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

PAUSE_S = 1.0
STOP_S = 90.0


def main(units: Path, verb: str, *words: str) -> int:
    names = [word for word in words if not word.startswith("-")]
    if verb == "daemon-reload":
        return 0
    if verb == "is-active":
        print("active" if _pid(units, names[0]) else "inactive")
        return 0 if _pid(units, names[0]) else 3
    if verb == "keep":
        return _keep(units, names[0])
    if verb in ("stop", "restart"):
        _stop(units, names[0])
    if verb in ("restart", "start") and not _pid(units, names[0]):
        _start(units, names[0])
    return 0


def _start(units: Path, name: str) -> None:
    if not (units / f"{name}.service").exists():
        sys.exit(f"unit {name} not found")
    with (units / f"{name}.log").open("ab") as log:
        keeper = subprocess.Popen(
            [sys.executable, __file__, str(units), "keep", name],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    (units / f"{name}.pid").write_text(str(keeper.pid))


def _pid(units: Path, name: str) -> int:
    """Return the pid of the unit's keeper if it lives; 0 if it does not."""
    try:
        pid = int((units / f"{name}.pid").read_text())
        return pid if b"systemctl_twin" in Path(f"/proc/{pid}/cmdline").read_bytes() else 0
    except (OSError, ValueError):
        return 0


def _stop(units: Path, name: str) -> None:
    if pid := _pid(units, name):
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while _pid(units, name) and time.monotonic() < deadline:
            time.sleep(0.1)


def _keep(units: Path, name: str) -> int:
    ending: list[int] = []
    child: list[subprocess.Popen[bytes]] = []

    def end(number: int, frame: object) -> None:
        ending.append(number)
        for each in child:
            each.terminate()

    signal.signal(signal.SIGTERM, end)
    command, environment = _unit(units / f"{name}.service")
    while not ending:
        child[:] = [subprocess.Popen(command, env=environment)]
        child[0].wait()
        if not ending:
            time.sleep(PAUSE_S)
    return 0


def _unit(path: Path) -> tuple[list[str], dict[str, str]]:
    environment, command = dict(os.environ), list[str]()
    for line in path.read_text().splitlines():
        key, _, value = line.partition("=")
        if key == "ExecStart":
            command = shlex.split(value)
        if key == "Environment":
            name, _, text = value.partition("=")
            environment[name] = text
        if key == "EnvironmentFile":
            file = Path(value.removeprefix("-"))
            lines = file.read_text().splitlines() if file.exists() else []
            pairs = [each.split("=", 1) for each in lines if "=" in each]
            environment |= {name: "".join(shlex.split(text)) for name, text in pairs}
    return command, environment


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
