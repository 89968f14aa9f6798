"""Slurm with a backup controller: the time from the death of the primary one to the next job start.

Both controllers run on this machine, at two loopback addresses. The backup has a host name of its
own in a UTS namespace, because a controller knows itself by its host's name. A job is submitted
from the death on until a controller accepts it. The backup notices the death after
SlurmctldTimeout. Each round starts both controllers again.
"""

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from typing import Final

from bench.cluster import say
from bench.peers import Missing, slurm
from bench.peers.slurm import Slurm

PRIMARY_ADDRESS: Final = "127.0.0.2"
BACKUP_ADDRESS: Final = "127.0.0.3"
BACKUP: Final = "slurm-backup"
# A controller looks up its own address by its host name. At its start it ends the process that its
# pid file names, so each controller has a pid file of its own.
LINE: Final = (
    "printf '%s\\n' '127.0.0.1 localhost' '{first} {primary}' '{second} {backup}' > hosts && "
    "mount --bind hosts /etc/hosts && hostname {name} && "
    "sed s/controller/{name}/ slurm.conf > {name}.conf && exec slurmctld -D -i -f {name}.conf"
)
WITHIN_S: Final = 400.0
READY_S: Final = 60.0
LOOK_S: Final = 0.1
SUBMIT_S: Final = 30


def line(name: str) -> Sequence[str]:
    """Return the command of the controller of that host name."""
    text = LINE.format(
        first=PRIMARY_ADDRESS,
        second=BACKUP_ADDRESS,
        primary=slurm.host(),
        backup=BACKUP,
        name=name,
    )
    return ("unshare", "--uts", "--mount", "sh", "-c", text)


def hosts(timeout_s: int) -> str:
    """Return the lines that name two controllers; the backup waits for the primary so long."""
    return (
        f"SlurmctldHost={slurm.host()}({PRIMARY_ADDRESS})\n"
        f"SlurmctldHost={BACKUP}({BACKUP_ADDRESS})\n"
        "CommunicationParameters=NoCtldInAddrAny\n"
        "DebugFlags=NO_CONF_HASH\n"
        f"SlurmctldTimeout={timeout_s}"
    )


def lines() -> Sequence[Sequence[str]]:
    """Return the commands of the backup and of the primary."""
    return line(BACKUP), line(slurm.host())


def take_over_s(system: Slurm) -> float:
    """Kill the primary; return the seconds until a job has started that was submitted later."""
    os.killpg(system.controller.pid, signal.SIGKILL)
    system.controller.wait()
    since = time.time()
    mark = system.folder / "started"
    mark.unlink(missing_ok=True)
    words = ("sbatch", "--gres=gpu:1", "--output=/dev/null", f"--wrap=date +%s.%N > {mark}")
    while not _submitted(system, words):
        _bounded(since)
    while not (mark.exists() and mark.read_text().strip()):
        _bounded(since)
    return float(mark.read_text()) - since


def measure(timeout_s: int, rounds: int) -> None:
    """Print the median and the maximum of so many deaths. Raises Missing."""
    took = []
    for _ in range(rounds):
        with slurm.running(hosts(timeout_s), lines()) as system:
            _await_both(system)
            took.append(take_over_s(system))
    setting = {"slurmctld_timeout_s": timeout_s}
    say("slurm_backup_p50_s", sorted(took)[len(took) // 2], "s", rounds, **setting)
    say("slurm_backup_max_s", max(took), "s", rounds, **setting)


def _submitted(system: Slurm, words: tuple[str, ...]) -> bool:
    try:
        done = subprocess.run(
            words, env=system.env, cwd=system.folder, capture_output=True, timeout=SUBMIT_S
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _await_both(system: Slurm) -> None:
    deadline = time.monotonic() + READY_S
    while system.run("scontrol", "ping").count(" UP") < 2:
        if time.monotonic() > deadline:
            raise Missing(f"Slurm's two controllers were not up after {READY_S:g} s")
        time.sleep(LOOK_S)


def _bounded(since: float) -> None:
    if time.time() - since > WITHIN_S:
        raise RuntimeError(f"no job started within {WITHIN_S:g} s")
    time.sleep(LOOK_S)
