"""The verbs up, down and clean as plain functions: `muster up` is `up(Options(...))`.

Each returns an exit code; what a person must put right is raised as one MusterError, whose text is
the one line to show.
"""

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from libs.cli.profile import profile_path
from libs.common.errors import Refused, Unavailable
from libs.common.safety.folder_walk import remove_tree
from libs.common.settings import configuration
from libs.doctor import disk
from libs.embedded import (
    certificates,
    identity,
    keeper,
    launcher,
    living,
    local_gpus,
    nats_config,
    plan,
    profile,
    runfile,
    servers,
    shape,
)
from libs.embedded.shape import Options, Shape

LEFT_BEHIND_GRACE_S: Final = 5.0
DOWN_S: Final = 60.0
BACKGROUND_S: Final = 60.0
POLL_S: Final = 0.05


def say(text: str) -> None:
    print(text, flush=True)


def up(options: Options) -> int:
    """Start the cluster of `options.state`, made when there is none; in the foreground until
    Ctrl-C, `down` or SIGTERM.
    """
    options = msgspec.structs.replace(options, state=options.state.resolve())
    configuration.read()  # a mistake in it is said before anything is made
    if not options.foreground:
        return _up_behind(options)
    state = options.state
    _check_disk_kind(options)
    first = not shape.shape_file(state).exists()
    found = shape.prepare(options)
    held = _lock(state)
    try:
        _end_what_is_left(state)
        found = _with_ports(found)
        config = _files(state, found)
        if first:
            _measure_disk(state)
        say(f"starting {found.words} in {state}")
        if profile.is_login(profile_path()):
            say(
                f"{profile_path()} holds a login and stays: for this cluster set "
                f"MUSTER_PROFILE={profile.path_of(state)}"
            )
        if found.local:
            say(local_gpus.survey())
        return launcher.run(state, found, config, say)
    finally:
        os.close(held)


def down(options: Options) -> int:
    """Stop the cluster and wait until it is gone."""
    state = options.state.resolve()
    found = runfile.running(state)
    if found is None:
        say(f"no cluster runs in {state}")
        return 0
    os.kill(found.launcher.pid, signal.SIGTERM)
    if not living.wait_gone([found.launcher], DOWN_S):
        raise Unavailable(
            f"the cluster in {state} (pid {found.launcher.pid}) still stops after "
            f"{DOWN_S:.0f} s: see {plan.logs(state)}"
        )
    say(f"the cluster in {state} is stopped")
    return 0


def clean(options: Options) -> int:
    """Remove the state directory, after asking: the log, the archive, the keys.

    Refuses while the cluster runs.
    """
    state = options.state.resolve()
    if not state.exists():
        say(f"there is nothing at {state}")
        return 0
    if shape.load(state) is None:
        raise Refused(
            f"{state} has no cluster.json: it is not a cluster's state, and nothing was removed"
        )
    held = _lock(state)
    try:
        if not options.yes and not _agreed(state):
            say("nothing was removed")
            return 1
        _end_what_is_left(state)
        if not remove_tree(state):
            raise Refused(
                f"{state} could not be removed whole: end the processes that write to it, "
                "then repeat the command"
            )
    finally:
        os.close(held)
    say(f"{state} is removed")
    return 0


def _check_disk_kind(options: Options) -> None:
    """The log promises that what was acknowledged survives a power cut; a network file system does
    not promise that to it.
    """
    kind = disk.network_kind(options.state)
    if kind and not options.force:
        raise Refused(
            f"{options.state} lies on a network file system ({kind}): choose a local disk "
            "with --state, or say --force"
        )


def _measure_disk(state: Path) -> None:
    """Once, at the first start: afterwards the disk is what it is."""
    words = disk.slow_words(disk.sync_ms(state))
    if words:
        say(f"warning: {words}")


def _lock(state: Path) -> int:
    try:
        return runfile.lock(state)
    except OSError as error:
        raise Refused(
            f"the state directory {state} cannot be written ({error.strerror}): choose "
            "another with --state"
        ) from error


def _end_what_is_left(state: Path) -> None:
    left = runfile.left_behind(state)
    if left:
        say(f"ending {len(left)} processes that an earlier launcher left behind")
        living.end(left, LEFT_BEHIND_GRACE_S)
    runfile.remove(state)


def _refuse_port(fault: int | None, host: str, port: int) -> None:
    if fault == errno.EADDRNOTAVAIL:
        raise Refused(f"{host} is no address of this machine: choose another with --host")
    if fault == errno.EACCES:
        raise Refused(f"port {port} is for root alone: choose one of 1024 or more with --port")
    if fault is not None:
        raise Refused(f"port {port} of {host} is taken: choose another with --port")


def _with_ports(found: Shape) -> Shape:
    """The gateways' ports must be free; the server's is ours to choose."""
    for port in range(found.port, found.port + found.gateways):
        _refuse_port(servers.listening_fault(found.host, port), found.host, port)
    if found.nats_port and servers.port_is_free(
        found.listen or nats_config.LOOPBACK, found.nats_port
    ):
        return found
    return msgspec.structs.replace(found, nats_port=servers.free_ports(1)[0])


def _files(state: Path, found: Shape) -> Path:
    """Everything on disk that a start needs; the path of the server's configuration."""
    try:
        shape.save(state, found)
        key = identity.api_key(state / "keys", profile.known_key(state))
        if found.listen:
            certificates.ensure(state / "keys")
        for node_id, why in plan.configure(state, found, keeper.load(state)).items():
            say(f"node {node_id} is not accepted: {why}")
        identity.public_key(state / "keys", plan.AUDIT_HEADS_KEY)
        profile.write(state, found, key)
    except OSError as error:
        raise Refused(
            f"{error.filename} cannot be written ({error.strerror}): give this user the "
            "right, or choose --state"
        ) from error
    return servers.config_file(state, plan.SERVER)


def _agreed(state: Path) -> bool:
    try:
        return input(f"remove {state} with its log, archive and keys? y/N ").strip().lower() in (
            "y",
            "yes",
        )
    except EOFError:
        return False


def _up_behind(options: Options) -> int:
    """The same in a process of its own; returns when it is ready, or with its exit code when it
    ends before.
    """
    state = options.state
    shape.prepare(options)
    plan.logs(state).mkdir(exist_ok=True, mode=0o700)
    said = plan.logs(state) / "launcher.log"
    begin = said.stat().st_size if said.exists() else 0
    with said.open("ab") as log:
        process = subprocess.Popen(
            _command(options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + BACKGROUND_S
    while (
        time.monotonic() < deadline and process.poll() is None and not _is_ready(state, process.pid)
    ):
        time.sleep(POLL_S)
    time.sleep(POLL_S)
    with said.open("rb") as log:
        log.seek(begin)
        say(log.read().decode(errors="replace").rstrip())
    return process.poll() or 0


def _is_ready(state: Path, pid: int) -> bool:
    found = runfile.running(state)
    return found is not None and found.launcher.pid == pid and found.ready


def _command(options: Options) -> list[str]:
    flags = {
        "nodes": options.nodes,
        "gpus": options.gpus,
        "model": options.model,
        "host": options.host,
        "port": options.port,
        "gateways": options.gateways,
        "listen": options.listen,
    }
    given = [
        text
        for name, value in flags.items()
        if value is not None
        for text in (f"--{name}", str(value))
    ]
    force = [
        flag for flag, wanted in (("--force", options.force), ("--local", options.local)) if wanted
    ]
    return [
        sys.executable,
        "-m",
        "libs.embedded",
        "up",
        "--state",
        str(options.state),
        *given,
        *force,
    ]
