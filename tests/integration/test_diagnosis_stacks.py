"""Stacks of real interpreters: by the hook's signal, of forked children, and never at a cost."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from services.node_agent.diagnosis import stacks
from services.node_agent.diagnosis.launch_hook import HOOK

WAIT_S = 10.0
STUCK = "import time\ndef stuck():\n    print('ready', flush=True)\n    time.sleep(60)\n"


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


def functions(pid: int) -> list[str]:
    found = stacks.by_faulthandler([pid]).get(pid, ())
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
    text = f"import faulthandler\nfaulthandler.unregister({stacks.SIGNAL})\n{STUCK}stuck()\n"
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
    assert stacks.by_py_spy(str(spy), os.getpid()) == (stacks.Frame("stuck", "/src/a.py", 3),)
