"""The engine and the configuration of a replica that starts: paths on which its user may put
anything.
"""

import hashlib
import os
import socket
import stat
from pathlib import Path

import pytest

from services.node_agent.directories.acting_as import acting_as
from services.node_agent.resident import engine

NOBODY = (65_534, 65_534)


def executable(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A virtual environment with two packages of engines."""
    packages = tmp_path / "env" / "lib" / "python3.11" / "site-packages"
    for name in ("vllm-0.9.dist-info", "torch-2.7.dist-info", "requests-2.dist-info", "vllm"):
        (packages / name).mkdir(parents=True)
    (tmp_path / "env" / "bin").mkdir()
    return Path(executable(tmp_path / "env" / "bin" / "python3", ""))


def test_the_packages_of_a_python_and_of_a_script_are_named(tmp_path: Path, python: Path) -> None:
    named = ["torch-2.7.dist-info", "vllm-0.9.dist-info"]
    script = executable(tmp_path / "serve", f"#!{python} -u\nrun()\n")
    assert engine.packages_of(str(python), {}) == named
    assert engine.packages_of(script, {}) == named
    assert engine.packages_of("serve", {"PATH": str(tmp_path)}) == named


def test_another_program_is_known_by_its_size_and_time(tmp_path: Path) -> None:
    for text in ("\x7fELF", "#!/bin/sh\n", "#!"):
        program = executable(tmp_path / "program", text)
        found = os.stat(program)
        assert engine.packages_of(program, {}) == [f"{program} {len(text)} {found.st_mtime_ns}"]
    assert engine.packages_of("no-such-program", {"PATH": "/bin"}) == ["no-such-program"]


def test_a_command_that_is_a_pipe_a_device_or_a_socket_is_not_opened(tmp_path: Path) -> None:
    """Each counts as a program by its size and time. An open of the pipe would wait for ever."""
    os.mkfifo(tmp_path / "pipe", 0o755)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(tmp_path / "socket"))
        (tmp_path / "socket").chmod(0o755)
        for name in ("pipe", "socket"):
            assert engine.packages_of(str(tmp_path / name), {})[0].startswith(f"{tmp_path}/{name} ")


def test_a_large_folder_of_packages_is_cut(python: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "NAMES_MAX", 1)
    assert len(engine.packages_of(str(python), {})) <= 1


def test_the_configuration_is_hashed_up_to_a_bound_and_never_a_pipe_or_a_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / engine.CONFIGURATION
    assert engine.configuration_of(str(tmp_path)) == ""
    path.write_bytes(b"{}")
    assert engine.configuration_of(str(tmp_path)) == hashlib.sha256(b"{}").hexdigest()
    with path.open("ab") as stream:
        stream.truncate(1 << 43)
    monkeypatch.setattr(engine, "CONFIGURATION_BYTES", 4)
    assert engine.configuration_of(str(tmp_path)) not in ("", hashlib.sha256(b"{}").hexdigest())
    path.unlink()
    os.mkfifo(path)
    assert engine.configuration_of(str(tmp_path)) == ""
    path.unlink()
    path.symlink_to("/dev/zero")
    assert engine.configuration_of(str(tmp_path)) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_files_that_the_jobs_user_may_not_read_are_not_read(tmp_path: Path, python: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | stat.S_IXOTH)
    (tmp_path / engine.CONFIGURATION).write_bytes(b"{}")
    (tmp_path / engine.CONFIGURATION).chmod(0o600)
    script = executable(tmp_path / "serve", f"#!{python}\n")
    os.chmod(script, 0o711)
    with acting_as(NOBODY):
        assert engine.configuration_of(str(tmp_path)) == ""
        assert engine.packages_of(script, {})[0].startswith(f"{script} ")
