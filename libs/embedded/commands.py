"""The verbs up, down and clean as functions: `muster up` is `up(Options(...))`.

Each returns an exit code. A fault that the user must repair is raised as a MusterError; its text is
the line to print.
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

from libs.client.profile import profile_path
from libs.common.errors import MusterError, Refused, Unavailable
from libs.common.safety.folder_walk import remove_tree
from libs.common.settings import configuration
from libs.doctor import disk
from libs.embedded import (
    farewell,
    groups,
    identity,
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
POLL_S: Final = 0.02


def say(text: str) -> None:
    print(text, flush=True)


def up(options: Options) -> int:
    """Start the cluster in `options.state`; create it if there is none.

    In the foreground it runs until Ctrl-C, `down` or SIGTERM.
    """
    options = msgspec.structs.replace(options, state=options.state.resolve())
    configuration.read()  # report its faults before anything is created
    new = not options.state.exists()
    code = 1
    try:
        code = _up_here(options) if options.foreground else _up_in_background(options)
    except Unavailable:
        new = False  # the cluster in the background goes on starting there
        raise
    finally:
        if new and code:
            _remove_unused(options.state)
    return code


def _up_here(options: Options) -> int:
    """Run the cluster in this process until it is stopped. Return the exit code."""
    from libs.embedded import launcher  # the process in the background imports it, not this one

    state = options.state
    _check_disk_kind(options)
    first = not shape.shape_file(state).exists()
    found = shape.prepare(options)
    held = _lock(state)
    try:
        _end_left_processes(state)
        found = _with_ports(state, found)
        config = _files(state, found)
        if first:
            _measure_disk(state)
        say(f"starting {found.words} in {state}")
        if profile.is_login(profile_path()):
            say(
                f"{profile_path()} holds the login of another cluster, so it was not changed: to "
                f"use this cluster, set MUSTER_PROFILE={profile.path_of(state)}"
            )
        if found.local:
            say(local_gpus.survey())
        return launcher.run(state, found, config, say)
    finally:
        os.close(held)


def down(options: Options) -> int:
    """Stop the cluster and wait until its processes have ended."""
    state = options.state.resolve()
    found = runfile.running(state)
    if found is None:
        other = _other_running(state)
        hint = f": use `muster down --state {other}` for the one in {other}" if other else ""
        say(f"no cluster runs in {state}{hint}")
        return 0
    known = shape.load(state)
    jobs = farewell.running_jobs(state, known) if known is not None else None
    os.kill(found.launcher.pid, signal.SIGTERM)
    if not living.wait_gone([found.launcher], DOWN_S):
        raise Unavailable(
            f"the cluster in {state} (pid {found.launcher.pid}) has not stopped after "
            f"{DOWN_S:.0f} s: see {plan.logs(state)}"
        )
    going_on = farewell.words(jobs, configuration.read().stop_lease_ms)
    say(f"the cluster in {state} has stopped. {going_on}")
    return 0


def clean(options: Options) -> int:
    """Remove the state directory (log, archive and keys) after the user confirmed it.

    Raises Refused while the cluster runs.
    """
    state = options.state.resolve()
    if not state.exists():
        say(f"nothing to remove: {state} does not exist")
        return 0
    if shape.load(state) is None:
        raise Refused(
            f"{state} is not the state of a cluster (it has no cluster.json): nothing was removed"
        )
    held = _lock(state)
    try:
        if not options.yes and not _agreed(state):
            say("nothing was removed")
            return 1
        _end_left_processes(state)
        left = groups.names_of(state)
        if not remove_tree(state):
            raise Refused(
                f"{state} could not be removed completely: end the processes that write to it, "
                "then repeat the command"
            )
    finally:
        os.close(held)
    groups.remove_empty(left, configuration.read().cgroup)
    say(f"removed {state}")
    return 0


def _check_disk_kind(options: Options) -> None:
    """Refuse a network file system: it may lose acknowledged commits in a power cut."""
    kind = disk.network_kind(options.state)
    if kind and not options.force:
        raise Refused(
            f"{options.state} is on a network file system ({kind}), which may lose acknowledged "
            "commits: choose a local disk with --state, or use --force"
        )


def _measure_disk(state: Path) -> None:
    """Warn about a slow disk; called at the first start only."""
    warning = disk.slow_warning(disk.sync_ms(state))
    if warning:
        say(f"warning: {warning}")


def _lock(state: Path) -> int:
    try:
        return runfile.lock(state)
    except OSError as error:
        raise Refused(
            f"the state directory {state} cannot be written ({error.strerror}): choose "
            "another with --state"
        ) from error


def _end_left_processes(state: Path) -> None:
    left = runfile.left_behind(state)
    if left:
        say(f"ending {len(left)} processes of an earlier launcher that was killed")
        living.end(left, LEFT_BEHIND_GRACE_S)
    runfile.remove(state)


def _remove_unused(state: Path) -> None:
    """Remove a state directory that a failed start made, if no cluster was stored in it."""
    if not state.is_dir() or shape.shape_file(state).exists():
        return
    try:
        held = _lock(state)
    except Refused:
        return  # another start uses it
    remove_tree(state)
    os.close(held)


def _other_running(state: Path) -> Path | None:
    """Return another state directory, which the profile names, if its cluster runs."""
    try:
        named = profile.kept_state(state)
        if named is None or named == state or runfile.running(named) is None:
            return None
    except (MusterError, OSError):
        return None
    return named


def _refuse_taken(state: Path, host: str, port: int) -> None:
    """Refuse a port that is in use; name this user's cluster if it uses the port."""
    other = _other_running(state)
    known = shape.load(other) if other is not None else None
    if known is not None and known.port <= port < known.port + known.gateways:
        raise Refused(
            f"port {port} of {host} is in use by your cluster in {other}: use that one, stop it "
            f"with `muster down --state {other}`, or choose another port with --port"
        )
    raise Refused(f"port {port} of {host} is in use: choose another with --port")


def _refuse_port(state: Path, fault: int | None, host: str, port: int) -> None:
    if fault == errno.EADDRNOTAVAIL:
        raise Refused(f"{host} is not an address of this machine: choose another with --host")
    if fault == errno.EACCES:
        raise Refused(f"port {port} needs root: choose 1024 or higher with --port")
    if fault is not None:
        _refuse_taken(state, host, port)


def _with_ports(state: Path, found: Shape) -> Shape:
    """Check that the gateways' ports are free, and choose a port for the NATS server."""
    for port in range(found.port, found.port + found.gateways):
        _refuse_port(state, servers.listening_fault(found.host, port), found.host, port)
    found = msgspec.structs.replace(found, grpc_port=_grpc_port(found))
    if found.nats_port and servers.port_is_free(
        found.listen or nats_config.LOOPBACK, found.nats_port
    ):
        return found
    return msgspec.structs.replace(found, nats_port=servers.free_ports(1)[0])


def _grpc_port(found: Shape) -> int:
    """Return the port for gRPC of the first gateway; 0 if one of the gateways' ports is taken."""
    first = configuration.read().gateway_grpc_port
    ports = range(first, first + found.gateways if first else first)
    for port in ports:
        if servers.listening_fault(found.host, port) is not None:
            say(
                f"port {port} of {found.host} is in use, so there is no gRPC: choose another port "
                "with MUSTER_GATEWAY_GRPC_PORT"
            )
            return 0
    return first


def _files(state: Path, found: Shape) -> Path:
    """Write all files that a start needs. Return the path of the NATS server's configuration."""
    from libs.embedded import keeper

    try:
        shape.save(state, found)
        key = identity.api_key(state / "keys", profile.known_key(state))
        if found.listen:
            from libs.embedded import certificates

            certificates.ensure(state / "keys")
        for node_id, why in plan.configure(state, found, keeper.load(state)).items():
            say(f"node {node_id} is not accepted: {why}")
        identity.public_key(state / "keys", plan.AUDIT_HEADS_KEY)
        profile.write(state, found, key)
    except OSError as error:
        raise Refused(
            f"{error.filename} cannot be written ({error.strerror}): give this user the "
            "right to write it, or choose another directory with --state"
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


def _up_in_background(options: Options) -> int:
    """Start the cluster in another process. Return 0 when it is ready, or its exit code.

    Raises Unavailable if it still starts after BACKGROUND_S. It goes on.
    """
    state = options.state
    shape.prepare(options)
    plan.logs(state).mkdir(exist_ok=True, mode=0o700)
    launcher_log = plan.logs(state) / "launcher.log"
    begin = launcher_log.stat().st_size if launcher_log.exists() else 0
    with launcher_log.open("ab") as log:
        process = subprocess.Popen(
            _command(options),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + BACKGROUND_S
    ready = False
    while not ready and process.poll() is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
        ready = _is_ready(state, process.pid)
    with launcher_log.open("rb") as log:
        log.seek(begin)
        say(log.read().decode(errors="replace").rstrip())
    code = process.poll()
    if code is None and not ready:
        raise Unavailable(
            f"the cluster in {state} is not ready after {BACKGROUND_S:.0f} s and goes on starting: "
            f"see {launcher_log}, or stop it with `muster down --state {state}`"
        )
    return code or 0


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
        **{name: getattr(options, name) for name in shape.REPLICATED},
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
