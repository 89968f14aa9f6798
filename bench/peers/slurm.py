"""Slurm with eight simulated nodes of eight GPUs each, from Debian's packages, on this machine.

All daemons run in a folder of their own, with ports of their own, and end with the block. The
scheduler is tuned for short jobs (`TUNED`); without that, a job of `sbatch` waits for up to three
seconds. Devices are counted and not bound, as Muster's simulated ones are. There is no accounting:
Muster's audit runs, so the comparison favours Slurm.
"""

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.peers import Missing, need
from libs.embedded import servers
from libs.embedded.living import die_with_parent

NODES: Final = 8
GPUS: Final = 8
READY_S: Final = 40.0
STOP_S: Final = 10.0
LOOK_S: Final = 0.05
ALONE: Final = ("slurmctld", "-D", "-i")
HOW: Final = "apt-get install slurmctld slurmd slurm-client munge (Debian), and run this as root"
TUNED: Final = (
    "batch_sched_delay=0,sched_min_interval=0,sched_interval=1,default_queue_depth=10000,"
    "max_rpc_cnt=0"
)
CONFIGURATION: Final = """\
ClusterName=peer
{controllers}
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/controller.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/controller.log
SlurmdLogFile={folder}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters={tuned}
SlurmdParameters=config_overrides
ReturnToService=2
MaxJobCount=100000
MaxArraySize=100001
GresTypes=gpu
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=64 \
RealMemory=1000 Gres=gpu:{gpus}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A running one. `env` is the environment of its commands."""

    controller: "subprocess.Popen[bytes]"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env: Mapping[str, str] = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def run(self, *words: str) -> str:
        """Run a command of Slurm, and return its output. Raises CalledProcessError."""
        return subprocess.run(
            words, env=self.env, cwd=self.folder, check=True, capture_output=True, text=True
        ).stdout

    def submit(self, *options: str) -> str:
        """Submit a job that runs `true` on one GPU, and return its id."""
        words = ("--parsable", "--gres=gpu:1", "--output=/dev/null", *options, "--wrap=true")
        return self.run("sbatch", *words).strip()

    def left(self) -> int:
        """Return how many jobs wait, run or complete."""
        return len(self.run("squeue", "--noheader", "--array", "--format=%i").split())

    def ready_nodes(self) -> int:
        return self.run("sinfo", "--noheader", "--Node", "--format=%t").split().count("idle")


def host() -> str:
    """Return the name by which a controller on this machine knows itself."""
    return socket.gethostname().partition(".")[0]


def start(slurm: Slurm, words: Sequence[str]) -> "subprocess.Popen[bytes]":
    """Start a daemon, which ends with this process."""
    return subprocess.Popen(
        words,
        env=slurm.env,
        cwd=slurm.folder,
        stdout=subprocess.DEVNULL,
        stderr=(slurm.folder / f"{Path(words[0]).name}.err").open("ab"),
        start_new_session=True,
        preexec_fn=die_with_parent,
    )


@contextmanager
def running(controllers: str = "", lines: Sequence[Sequence[str]] = (ALONE,)) -> Iterator[Slurm]:
    """Run Slurm until the end of the block. Raises Missing.

    `controllers` are the lines of the configuration that name them; without, there is one. `lines`
    are their commands, the primary's last.
    """
    need(("slurmctld", "slurmd", "sbatch", "srun", "munged"), HOW)
    if os.geteuid() != 0:
        raise Missing(f"Slurm's daemons start as root alone: {HOW}")
    with TemporaryDirectory(prefix="slurm-") as name, ExitStack() as stack:
        slurm = Slurm(Path(name))
        _configure(slurm.folder, controllers or f"SlurmctldHost={host()}(127.0.0.1)")
        for words, is_ready in _daemons(slurm, lines):
            process = start(slurm, words)
            stack.callback(stop, process)
            if words is lines[-1]:
                slurm.controller = process
            _await(slurm.folder, is_ready)
        yield slurm


def _configure(folder: Path, controllers: str) -> None:
    first = servers.free_port_run(NODES + 1)
    (folder / "state").mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    (folder / "slurm.conf").write_text(
        CONFIGURATION.format(
            folder=folder,
            controllers=controllers,
            host=host(),
            port=first + NODES,
            first=first,
            last=first + NODES - 1,
            nodes=NODES,
            gpus=GPUS,
            tuned=TUNED,
        )
    )
    for number in range(GPUS):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(
        f"NodeName=n[1-{NODES}] Name=gpu File={folder}/gpu[0-{GPUS - 1}]\n"
    )


def _daemons(
    slurm: Slurm, controllers: Sequence[Sequence[str]]
) -> Iterator[tuple[Sequence[str], Callable[[], bool]]]:
    """Yield the daemons in the order in which they start, and whether each is ready."""
    folder = slurm.folder
    munge = [
        f"--{name}={folder}/munge.{end}"
        for name, end in (
            ("socket", "socket"),
            ("key-file", "key"),
            ("log-file", "log"),
            ("pid-file", "pid"),
            ("seed-file", "seed"),
        )
    ]
    # The folder of a test may be one that munge distrusts.
    yield ("munged", "--foreground", "--force", *munge), (folder / "munge.socket").exists
    for words in controllers[:-1]:  # before the primary, which waits for their answers
        yield words, lambda: True
    yield controllers[-1], lambda: _answers(slurm)
    for number in range(1, NODES + 1):
        (folder / f"spool-n{number}").mkdir()
        yield ("slurmd", "-D", "-N", f"n{number}"), partial(_has_nodes, slurm, number)


def _has_nodes(slurm: Slurm, count: int) -> bool:
    return slurm.ready_nodes() >= count


def _answers(slurm: Slurm) -> bool:
    words = ("scontrol", "ping")
    found = subprocess.run(words, env=slurm.env, capture_output=True, text=True)
    return " UP" in found.stdout


def _await(folder: Path, is_ready: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_S
    while not is_ready():
        if time.monotonic() > deadline:
            lines = "\n".join(
                line
                for path in sorted(folder.glob("*.log")) + sorted(folder.glob("*.err"))
                for line in path.read_text(errors="replace").splitlines()[-5:]
            )
            raise Missing(f"Slurm was not ready after {READY_S:g} s:\n{lines}")
        time.sleep(LOOK_S)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a daemon with all that it started."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(STOP_S)


def throughput(slurm: Slurm, jobs: int, submitters: int) -> float:
    """Return the seconds until so many jobs ended, each submitted by a command of its own."""
    began = time.monotonic()
    shares = [jobs // submitters + (number < jobs % submitters) for number in range(submitters)]
    sbatch = shutil.which("sbatch")
    loop = (
        f'for i in $(seq "$1"); do {sbatch} --parsable --gres=gpu:1 --output=/dev/null --wrap=true'
        " >/dev/null || exit 1; done"
    )
    started = [
        subprocess.Popen(["sh", "-c", loop, "sh", str(share)], env=slurm.env, cwd=slurm.folder)
        for share in shares
    ]
    codes = [process.wait() for process in started]
    assert codes == [0] * submitters, codes
    return _ended_since(slurm, began)


def array(slurm: Slurm, jobs: int) -> float:
    """Return the seconds until all elements of one array ended."""
    began = time.monotonic()
    slurm.submit(f"--array=0-{jobs - 1}")
    return _ended_since(slurm, began)


def _ended_since(slurm: Slurm, began: float) -> float:
    while slurm.left():
        time.sleep(LOOK_S)
    return time.monotonic() - began


def to_running_ms(slurm: Slurm) -> float:
    """Return the milliseconds from the start of `srun` to the job's own time."""
    before_ns = time.time_ns()
    answer = slurm.run("srun", "--gres=gpu:1", "date", "+%s%N")
    return (int(answer) - before_ns) / 1e6
