"""Start the job's main process, and processes beside it (`execs.py`).

A child dies with its supervisor (PR_SET_PDEATHSIG), has its own session, and starts with default
signal dispositions and an empty mask, whatever its ancestors ignored. A failure before exec comes
back through a pipe, which a successful exec closes. The guard (`guard.c`) does all of that: a
program of 1 KB that is spawned and becomes the job, because a fork of this process would cost 1.5
ms more. On machines without a guard a forked child does the same.
"""

import contextlib
import errno
import os
import platform
import select
import signal
import stat
import struct
from collections.abc import Iterable
from typing import NamedTuple, NoReturn, cast

from services.node_agent.machine.processes import PR_SET_NO_NEW_PRIVS, PR_SET_PDEATHSIG, prctl
from services.node_agent.supervisor.order import Order

DEFAULT_PATH = "/usr/local/bin:/usr/bin:/bin"
FAILURE = struct.Struct("<BI")
STAGE_SETUP, STAGE_WORKDIR, STAGE_EXEC = 0, 1, 2
# While the child shares its parent's memory, every page that the parent touches is copied, so the
# parent waits for the exec. Bounded, because an exec may hang on a dead file system.
EXEC_WAIT_MS = 50
GUARD = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"guard.{platform.machine()}")
HAS_GUARD = os.access(GUARD, os.X_OK)
# When memory runs out, the kernel kills the job before its supervisor.
SCORE_FILE, SCORE = "/proc/self/oom_score_adj", b"1000"
EXIT_WORKDIR, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 125, 126, 127


class Child(NamedTuple):
    """A started process and the supervisor's ends of its pipes.

    `stdin` is -1 without a pipe. `status` reaches its end once exec has succeeded.
    """

    pid: int
    stdout: int
    stderr: int
    stdin: int
    status: int


class Ends(NamedTuple):
    """The child's ends. If stdin and stdout are the same, they are a terminal, which the child
    takes over.
    """

    stdin: int
    stdout: int
    stderr: int
    status: int


def start_child(order: Order) -> Child:
    """Start the job; the caller has claimed the attempt, and the child executes at once.

    Raises OSError if the machine has no room for another process. The pipes to read are
    non-blocking.
    """
    ours, ends = open_streams(order)
    pid = Command(order, ends).start({})
    close_ends(ends)
    if not HAS_GUARD:
        waiting = select.poll()
        waiting.register(ours.status, select.POLLIN)
        waiting.poll(EXEC_WAIT_MS)
    return ours._replace(pid=pid)


def open_streams(order: Order) -> tuple[Child, Ends]:
    """Open the streams of a job that has not started: the supervisor's ends, and the child's."""
    stdout_read, stdout_write = os.pipe2(os.O_CLOEXEC)
    stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC)
    status_read, status_write = os.pipe2(os.O_CLOEXEC)
    stdin_read, stdin_write = (
        os.pipe2(os.O_CLOEXEC)
        if order["stdin"]
        else (os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1)
    )
    _give((stdout_write, stderr_write, *([stdin_read] if order["stdin"] else [])), order["account"])
    for descriptor in (stdout_read, stderr_read, status_read, stdin_write):
        if descriptor >= 0:
            os.set_blocking(descriptor, False)
    ours = Child(0, stdout=stdout_read, stderr=stderr_read, stdin=stdin_write, status=status_read)
    return ours, Ends(stdin_read, stdout_write, stderr_write, status_write)


class Command:
    """The job's command with its streams. It can be started more than once.

    Everything that each start needs is encoded once.
    """

    def __init__(self, order: Order, ends: Ends) -> None:
        self._order = order
        self._ends = ends
        self._env = {os.fsencode(name): os.fsencode(text) for name, text in order["env"].items()}
        self._arguments = [*map(os.fsencode, _guard_arguments("guard", order))]
        self._moves = _moves(ends)

    def start(self, variables: dict[bytes, bytes]) -> int:
        """Start a process, with these variables too; return its pid. The streams stay open.

        Raises OSError if the machine has no room for another process.
        """
        self._env |= variables
        if HAS_GUARD:
            return os.posix_spawn(GUARD, self._arguments, self._env, file_actions=self._moves)
        env = {os.fsdecode(name): os.fsdecode(text) for name, text in self._env.items()}
        return _fork(cast(Order, {**self._order, "env": env}), self._ends)


def close_ends(ends: Ends) -> None:
    for descriptor in ends:
        os.close(descriptor)


def fork_beside(order: Order, descriptors: list[int]) -> tuple[int, int]:
    """Start a process beside the job; return its pid, and the pipe for a failure before exec.

    `descriptors` are its three streams, or one terminal; they stay the caller's. Raises OSError as
    above.
    """
    status_read, status_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    stdin, stdout, stderr = descriptors if len(descriptors) > 1 else descriptors * 3
    _give(descriptors, order["account"])
    try:
        return _fork(order, Ends(stdin, stdout, stderr, status_write)), status_read
    except OSError:
        os.close(status_read)
        raise
    finally:
        os.close(status_write)


def _give(descriptors: Iterable[int], account: list[int]) -> None:
    """Give the pipes and terminals to the job's user, so that it can open them by name
    (/dev/stdout).
    """
    for descriptor in descriptors if account else ():
        if stat.S_ISFIFO(os.fstat(descriptor).st_mode) or os.isatty(descriptor):
            os.fchown(descriptor, account[0], account[1])


def explain_failure(raw: bytes, order: Order) -> tuple[int, str]:
    """Return the exit code and a sentence for a failure before exec."""
    stage, number = FAILURE.unpack(raw)
    name, why = order["argv"][0], os.strerror(number)
    if stage == STAGE_WORKDIR:
        missing = "does not exist" if number == errno.ENOENT else f"cannot be entered ({why})"
        return EXIT_WORKDIR, f"the working directory {order['workdir']} {missing}"
    if stage == STAGE_SETUP:
        return EXIT_NOT_EXECUTABLE, f"the process could not be set up: {why}"
    if number != errno.ENOENT:
        return EXIT_NOT_EXECUTABLE, f"the command {name} cannot be executed: {why}"
    if os.path.exists(os.path.join(order["workdir"], name)) and "/" in name:
        return EXIT_NOT_FOUND, f"the interpreter of {name} was not found"
    where = "" if "/" in name else f" in PATH={order['env'].get('PATH', DEFAULT_PATH)}"
    return EXIT_NOT_FOUND, f"the command {name} was not found{where}"


def spawn_starter(order: Order, ends: list[int], variables: Iterable[bytes]) -> int:
    """Spawn the starter of guard.c, and return its pid. Raises OSError.

    `ends` are those of the command, and of the pipes for requests and pids. `variables` are the
    names that requests set.
    """
    if any(end < to for to, end in enumerate(ends)):  # a move would close what another one needs
        raise OSError(errno.EMFILE, "the starter needs the first descriptors")
    env = {os.fsencode(name): os.fsencode(text) for name, text in order["env"].items()}
    for name in variables:
        env.pop(name, None)
    arguments = _guard_arguments("starter", order)
    return os.posix_spawn(GUARD, arguments, env, file_actions=_moves(ends))


def _moves(ends: Iterable[int]) -> list[tuple[int, int, int]]:
    """Return the actions that give a spawned process these descriptors, from 0 on."""
    return [(os.POSIX_SPAWN_DUP2, end, to) for to, end in enumerate(ends)]


def _guard_arguments(role: str, order: Order) -> list[str]:
    """Return the arguments of the guard, which guard.c describes."""
    return [
        role,
        str(os.getpid()),
        " ".join(map(str, order["account"])),
        order["workdir"],
        *_paths(order["argv"][0], order["env"]),
        "",
        *order["argv"],
    ]


def _fork(order: Order, ends: Ends) -> int:
    supervisor_pid = os.getpid()
    pid = os.fork()
    if pid == 0:
        _become(order, ends, supervisor_pid)
    return pid


def _become(order: Order, ends: Ends, supervisor_pid: int) -> NoReturn:
    """Become the job in the forked child. Never returns, whatever happens."""
    stage = STAGE_SETUP
    try:
        _set_up(ends, order["account"], supervisor_pid)
        stage = STAGE_WORKDIR
        os.chdir(order["workdir"])
        stage = STAGE_EXEC
        _execute(order["argv"], order["env"])
    except OSError as error:
        os.write(ends.status, FAILURE.pack(stage, error.errno or errno.EINVAL))
    finally:
        os._exit(EXIT_NOT_FOUND)


def _become_user(account: list[int]) -> None:
    """Become the job's user for good: no program that it starts can go back, whatever bits its file
    has.
    """
    if account:
        uid, gid, *groups = account
        os.setgroups(groups)
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        prctl(PR_SET_NO_NEW_PRIVS, 1)


def _set_up(ends: Ends, account: list[int], supervisor_pid: int) -> None:
    with contextlib.suppress(OSError):
        score = os.open(SCORE_FILE, os.O_WRONLY)
        os.write(score, SCORE)
        os.close(score)
    _become_user(account)
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after that: another user takes it away
    if os.getppid() != supervisor_pid:  # it died before the line above took effect
        os._exit(EXIT_NOT_FOUND)
    signal.signal(
        signal.SIGTERM, signal.SIG_DFL
    )  # it may be stopped before exec, which resets the other handlers
    if ends.stdin == ends.stdout:
        os.login_tty(ends.stdin)
        return
    os.setsid()
    os.dup2(ends.stdin, 0)
    os.dup2(ends.stdout, 1)
    os.dup2(ends.stderr, 2)


def _execute(argv: list[str], env: dict[str, str]) -> None:
    """Execute the command; raise the most telling OSError if that fails.

    os.execvpe would import modules in the child, so the search is here.
    """
    denied: OSError = FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in _paths(argv[0], env):
        try:
            os.execve(path, argv, env)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            denied = error
    raise denied


def _paths(name: str, env: dict[str, str]) -> list[str]:
    """Return the places where the command may be, in search order."""
    if "/" in name:
        return [name]
    return [f"{folder or '.'}/{name}" for folder in env.get("PATH", DEFAULT_PATH).split(":")]
