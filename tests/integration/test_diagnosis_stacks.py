"""Stacks of real interpreters: by the hook's signal, of forked children, and never at a cost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.common.diagnosis.evidence import Frame
from libs.job.stacks import SIGNAL
from services.node_agent.diagnosis import stacks
from services.node_agent.diagnosis.launch_hook import HOOK

WAIT_S = 10.0
STUCK = "import time\ndef stuck():\n    print('ready', flush=True)\n    time.sleep(60)\n"


NOBODY = (65_534, 65_534)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as other users")


@contextmanager
def program(
    folder: Path, text: str, path: str = HOOK, *flags: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a program until it prints a line; kill it at the end."""
    (folder / "program.py").write_text(text)
    process = subprocess.Popen(
        [sys.executable, *flags, str(folder / "program.py")],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
    finally:
        process.kill()
        process.wait(WAIT_S)


def functions(pid: int, ids: Sequence[int] = ()) -> list[str]:
    found = stacks.by_faulthandler([pid], ids).get(pid, ())
    return [frame.function for frame in found]


def test_a_hooked_interpreter_shows_the_stack_of_its_main_thread(tmp_path: Path) -> None:
    text = f"import threading\n{STUCK}threading.Thread(target=stuck, daemon=True).start()\n"
    text += "def waits():\n    time.sleep(60)\nwaits()\n"
    with program(tmp_path, text) as process:
        deadline = time.monotonic() + WAIT_S
        while functions(process.pid)[:1] != ["waits"] and time.monotonic() < deadline:
            time.sleep(0.05)  # the main thread still starts the other one
        for _ in range(3):
            assert functions(process.pid) == ["waits", "<module>"]
        assert process.poll() is None


def test_a_forked_child_has_a_stack_of_its_own(tmp_path: Path) -> None:
    text = f"import os\n{STUCK}child = os.fork()\nif child:\n    print(child, flush=True)\n"
    text += "    os.waitpid(child, 0)\nelse:\n    stuck()\n"
    with program(tmp_path, text) as process:
        (child,) = _children(process.pid)
        assert functions(process.pid) == ["<module>"]
        assert functions(child) == ["stuck", "<module>"]
        os.kill(child, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if found := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            return [int(each) for each in found]
    raise TimeoutError("the program forked no child")


def test_the_users_own_sitecustomize_still_runs(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.customised = True\n")
    text = f"{STUCK}import sys\nassert customised and sys.path[1] == {str(tmp_path)!r}\nstuck()\n"
    with program(tmp_path, text, f"{HOOK}:{tmp_path}") as process:
        assert functions(process.pid) == ["stuck", "<module>"]


@pytest.mark.parametrize("flag", ["-I", "-S"])
def test_an_interpreter_without_the_hook_gets_no_signal(tmp_path: Path, flag: str) -> None:
    with program(tmp_path, f"{STUCK}stuck()\n", HOOK, flag) as process:
        assert functions(process.pid) == []
        assert process.poll() is None


def test_a_process_that_took_the_handler_away_gets_no_signal(tmp_path: Path) -> None:
    text = f"import faulthandler\nfaulthandler.unregister({SIGNAL})\n{STUCK}stuck()\n"
    with program(tmp_path, text) as process:
        assert functions(process.pid) == []
        assert process.poll() is None


def test_the_bytes_of_stacks_are_known_and_their_memory_is_freed(tmp_path: Path) -> None:
    with program(tmp_path, f"{STUCK}stuck()\n") as process:
        before = stacks.written_bytes(process.pid)
        assert functions(process.pid)
        assert stacks.written_bytes(process.pid) > before == 0
        dump = stacks.open_dump(process.pid)
        assert dump is not None
        assert set(os.pread(dump.descriptor, dump.size, 0)) == {0}
        dump.close()


def test_a_file_with_the_name_of_a_memory_file_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own"
    text = f"import faulthandler\nfile = open({str(own)!r}, 'w+')\n"
    text += f"faulthandler.register({SIGNAL}, file=file)\n{STUCK}stuck()\n"
    with program(tmp_path, text, "") as process:
        for name in (str(own), str(tmp_path / "gone")):
            monkeypatch.setattr(stacks, "LINK", name)
            assert stacks.open_dump(process.pid) is None
            assert functions(process.pid) == []
            own.rename(tmp_path / "gone") if own.exists() else None
    assert (tmp_path / "gone").read_bytes() == b""


# Become another user as a job does, and be readable to it as after an exec.
BECOME = f"""
import ctypes, os
os.setgroups([])
os.setresgid(*3 * [{NOBODY[1]}])
os.setresuid(*3 * [{NOBODY[0]}])
ctypes.CDLL(None).prctl(4, 1)
"""


@as_root
def test_the_agent_reads_stacks_as_the_jobs_user_only(tmp_path: Path) -> None:
    with program(tmp_path, f"{BECOME}{STUCK}stuck()\n") as process:
        assert functions(process.pid, NOBODY) == ["stuck", "<module>"]
        assert functions(process.pid, (65_533, 65_533)) == []
        assert stacks.written_bytes(process.pid, NOBODY) > 0
        assert stacks.written_bytes(process.pid, (65_533, 65_533)) == 0
    with program(tmp_path, f"{STUCK}stuck()\n") as process:
        assert functions(process.pid, NOBODY) == []
    assert os.geteuid() == 0


def test_py_spy_gets_neither_the_environment_nor_the_groups_of_the_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET", "x")
    spy, ids = tmp_path / "py-spy", NOBODY if os.geteuid() == 0 else ()
    seen = '[{"thread_name": "MainThread", "frames": [{"name": "%s", "filename": "f", "line": 1}]}]'
    spy.write_text(f"#!/bin/sh\nprintf '{seen}' \"$SECRET:$(id -u):$(id -G)\"\n")
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    spy.chmod(0o755)
    (frame,) = stacks.by_py_spy(str(spy), os.getpid(), ids)
    groups = "65534" if ids else " ".join(map(str, os.getgroups()))
    assert frame.function == f":{ids[0] if ids else os.geteuid()}:{groups}"


def test_an_endless_answer_of_py_spy_is_no_stack(tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text("#!/bin/sh\nwhile :; do echo 0123456789; done\n")
    spy.chmod(0o700)
    assert stacks.by_py_spy(str(spy), os.getpid()) == ()


@as_root
def test_py_spy_of_root_reads_no_process_of_another_user(tmp_path: Path) -> None:
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\ntouch {tmp_path}/called\necho '[]'\n")
    spy.chmod(0o700)
    other = subprocess.Popen(["sleep", "60"], user=NOBODY[0])
    try:
        assert stacks.by_py_spy(str(spy), other.pid) == ()
        assert not (tmp_path / "called").exists()
    finally:
        other.kill()
        other.wait(WAIT_S)


def test_py_spy_that_is_missing_or_broken_gives_no_stack(tmp_path: Path) -> None:
    assert stacks.by_py_spy(str(tmp_path / "py-spy"), os.getpid()) == ()
    for answer in ("no json", "[]", '[{"thread_name": "MainThread"}]', "{}"):
        broken = tmp_path / "broken"
        broken.write_text(f"#!/bin/sh\ncat <<'E'\n{answer}\nE\n")
        broken.chmod(0o700)
        assert stacks.by_py_spy(str(broken), os.getpid()) == ()


def test_the_answer_of_py_spy_is_read_from_the_main_thread(tmp_path: Path) -> None:
    frames = '[{"name": "stuck", "filename": "/src/a.py", "line": 3}]'
    other = '{"thread_name": "Thread-1", "frames": []}'
    main = f'{{"thread_name": "MainThread", "frames": {frames}}}'
    spy = tmp_path / "py-spy"
    spy.write_text(f"#!/bin/sh\necho '[{other}, {main}]'\n")
    spy.chmod(0o700)
    assert stacks.by_py_spy(str(spy), os.getpid()) == (Frame("stuck", "/src/a.py", 3),)
