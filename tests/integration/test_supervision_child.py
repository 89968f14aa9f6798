"""The start of a job's main process, in both ways: by the guard, and by a fork where no guard was
built for the machine.
"""

import contextlib
import os
import platform
import signal
import sys
import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.machine import processes
from services.node_agent.supervisor import child
from services.node_agent.supervisor.order import Order, checked

WAIT_S = 20.0
STARTER = """
import sys, time
from services.node_agent.supervisor import child
child.HAS_GUARD = sys.argv[1] == "guard"
order = {"argv": ["sleep", "60"], "env": {"PATH": "/usr/bin:/bin"}, "workdir": "/"}
order |= {"stdin": False, "account": []}
print(child.start_child(order).pid, flush=True)
time.sleep(60)
"""


def test_the_guard_that_is_kept_was_built_of_the_source_beside_it() -> None:
    """Compare the stored program with its source.

    `make guard` builds it and records both checksums: this test fails if only one of them changes.
    """
    folder = Path(child.__file__).parent
    written = {
        name: digest
        for digest, name in map(str.split, (folder / "guard.sha256").read_text().splitlines())
    }
    assert written == {
        name: sha256((folder / name).read_bytes()).hexdigest()
        for name in ("guard.c", "guard.x86_64")
    }


@pytest.fixture(params=["guard", "fork"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "guard" and not child.HAS_GUARD:
        pytest.skip("no guard was built for this machine")
    monkeypatch.setattr(child, "HAS_GUARD", request.param == "guard")
    return str(request.param)


def order(tmp_path: Path, *argv: str, **fields: Any) -> Order:
    paths = {"job_dir": str(tmp_path), "lease_path": "/lease", "agent_socket": "/socket"}
    given = {
        "job_id": "job",
        "attempt": 1,
        "rank": 0,
        "argv": list(argv),
        "env": {"PATH": "/nowhere:/usr/bin:/bin"},
        "workdir": "/",
    }
    return checked(
        {
            **given,
            **paths,
            "stdin": False,
            "output_limit_bytes": 1,
            "ignore_lease": False,
            "limits": {},
            "account": [],
            **fields,
        }
    )


def ended(given: Order) -> tuple[int, bytes, bytes]:
    """Exit code, output, and what was reported before exec."""
    started = child.start_child(given)
    code = os.waitstatus_to_exitcode(os.waitpid(started.pid, 0)[1])
    found = []
    for descriptor in (started.stdout, started.status):
        os.set_blocking(descriptor, True)
        found.append(os.read(descriptor, 4096))
    for descriptor in (started.stdout, started.stderr, started.status):
        os.close(descriptor)
    return code, found[0], found[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a job another user")
@pytest.mark.usefixtures("way")
def test_it_becomes_another_user_with_its_groups_for_good_and_still_dies_with_its_supervisor(
    tmp_path: Path,
) -> None:
    told = (
        "id -u; id -g; id -G; grep NoNewPrivs /proc/self/status; cat /proc/self/oom_score_adj; : "
        "> /dev/stdout"
    )
    code, output, failure = ended(
        order(tmp_path, "/bin/sh", "-c", told, account=[65534, 65533, 7, 9])
    )
    assert (code, failure) == (0, b"")
    assert output.split() == [
        b"65534",
        b"65533",
        b"65533",
        b"7",
        b"9",
        b"NoNewPrivs:",
        b"1",
        b"1000",
    ]


def inheritable() -> set[int]:
    """Return the descriptors that the test process itself inherited from its parent."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the folder's own
            found |= {int(name)} if os.get_inheritable(int(name)) else set()
    return found


def test_the_command_is_searched_in_path_and_given_its_arguments_directory_and_environment(
    way: str, tmp_path: Path
) -> None:
    given = order(
        tmp_path,
        "sh",
        "-c",
        'echo "$0|$1|$2|$PWD|$PATH|$KEY"',
        "",
        "b c",
        env={"PATH": "/nowhere:/usr/bin:/bin", "KEY": "v"},
        workdir="/usr",
    )
    assert ended(given) == (0, b"|b c||/usr|/nowhere:/usr/bin:/bin|v\n", b"")


def test_it_leads_a_session_and_holds_its_three_streams_alone(way: str, tmp_path: Path) -> None:
    code, said, _ = ended(
        order(tmp_path, "sh", "-c", "echo $$ $(cut -d' ' -f5,6 /proc/$$/stat); ls /proc/$$/fd")
    )
    pid, group, session, *descriptors = said.split()
    assert (code, pid == group == session, {int(each) for each in descriptors}) == (
        0,
        True,
        {0, 1, 2} | inheritable(),
    )


@pytest.mark.parametrize(
    ("argv", "workdir", "exit_code", "says"),
    [
        (
            ["no-such-command"],
            "/",
            child.EXIT_NOT_FOUND,
            "was not found in PATH=/nowhere:/usr/bin:/bin",
        ),
        (["/no/such"], "/", child.EXIT_NOT_FOUND, "/no/such was not found"),
        (["/etc/passwd"], "/", child.EXIT_NOT_EXECUTABLE, "Permission denied"),
        (["true"], "/no/such", child.EXIT_WORKDIR, "does not exist"),
    ],
)
def test_a_failure_before_exec_says_why(
    way: str, tmp_path: Path, argv: list[str], workdir: str, exit_code: int, says: str
) -> None:
    given = order(tmp_path, *argv, workdir=workdir)
    _, said, failure = ended(given)
    code, text = child.explain_failure(failure, given)
    assert (said, code) == (b"", exit_code) and says in text


def test_child_dies_with_its_parent(way: str, tmp_path: Path) -> None:
    read, write = os.pipe()
    starter = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", STARTER, way],
        dict(os.environ),
        file_actions=[(os.POSIX_SPAWN_DUP2, write, 1)],
    )
    pid = int(os.read(read, 64))
    begun = processes.process(pid)
    assert begun is not None
    os.kill(starter, signal.SIGKILL)
    os.waitpid(starter, 0)
    deadline = time.monotonic() + WAIT_S
    while processes.is_living(pid, begun.start_ticks):
        assert time.monotonic() < deadline, "it lives on"
        time.sleep(0.01)
    os.close(read)
    os.close(write)


@pytest.mark.skipif(platform.machine() != "x86_64", reason="no guard was built for this machine")
def test_there_is_a_guard_that_may_be_executed() -> None:
    assert child.HAS_GUARD, f"{child.GUARD}: run `make guard`"


def test_the_guard_does_nothing_for_another_parent_than_the_one_it_was_told() -> None:
    if not child.HAS_GUARD:
        pytest.skip("no guard was built for this machine")
    pid = os.posix_spawn(child.GUARD, ["guard", "1", "/", "/bin/true", "", "true"], {})
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == child.EXIT_NOT_FOUND
