"""A job in a container names files and directories of the node's other users as its mounts."""

import os
from pathlib import Path
from typing import Any

import pytest

from services.node_agent.runtimes import runner
from services.node_agent.runtimes.allowed import working_directory

pytestmark = [
    pytest.mark.attack,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user"),
]
JOB = [70_001, 70_001]
ALICE = 1


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home of a user of the node, below folders that every user may enter."""
    for folder in (tmp_path, *tmp_path.parents):
        if "pytest" in str(folder):
            folder.chmod(folder.stat().st_mode | 0o011)
    made = tmp_path / "alice"
    made.mkdir()
    (made / "key").write_text("secret")
    (made / "key").chmod(0o600)
    for path in (made, made / "key"):
        os.chown(path, ALICE, ALICE)
    made.chmod(0o700)
    return made


def mount(path: Path, *names: str, **more: Any) -> dict[str, Any]:
    return {"root": str(path), "names": names, "target": "/in", "read_only": False, **more}


def test_a_directory_that_the_jobs_user_may_not_enter_is_not_mounted(home: Path) -> None:
    """An open by name needs rights only at the folders above the directory."""
    for asked in (
        mount(home.parent, "alice"),
        working_directory(str(home), True, ()),
        mount(home, optional=True),
    ):
        with pytest.raises(OSError, match=r"mount for .*: Permission denied"):
            runner.own_mount(asked, JOB, str(home.parent / "at"))
    assert not (home.parent / "at").exists()


def test_a_file_that_the_jobs_user_may_not_read_is_not_mounted(home: Path) -> None:
    home.chmod(0o755)
    with pytest.raises(OSError, match="mount for /in: Permission denied"):
        runner.own_mount(mount(home, "key"), JOB, str(home.parent / "at"))


@pytest.mark.parametrize(("mode", "may_change"), [(0o644, False), (0o666, True)])
def test_a_file_that_the_jobs_user_may_not_change_is_for_reading(
    home: Path, mode: int, may_change: bool
) -> None:
    home.chmod(0o755)
    (home / "key").chmod(mode)
    with runner.acting_as(JOB):
        descriptor = runner.opened(str(home), ["key"])
        assert runner.usable(descriptor) == may_change
    os.close(descriptor)


def test_a_container_of_another_user_gets_no_working_directory_outside_of_mounts(
    home: Path,
) -> None:
    """This holds even if the job's user may enter it: the container's user owns the files in it."""
    home.chmod(0o755)
    with pytest.raises(OSError, match=r"another user than the job: mount .*/alice: this node lets"):
        runner.own_mount(working_directory(str(home), False, ()), JOB, str(home.parent / "at"))
    missing = working_directory(str(home / "none"), False, ())
    assert runner.own_mount(missing, JOB, str(home.parent / "at")) == []


def test_the_agents_own_user_mounts_a_directory_in_its_place(home: Path) -> None:
    (found,) = runner.own_mount(working_directory(str(home), True, ()), [], str(home / "at"))
    assert (found["Source"], found["Target"], found["ReadOnly"]) == (str(home), str(home), False)
