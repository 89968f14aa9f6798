"""The checks of `muster doctor`: each finding has one state and a fix."""

import os
import socket
from pathlib import Path

from libs.doctor import MISSING, OK, WRONG, checks, disk
from libs.embedded import runfile
from libs.embedded.living import ticket


def test_cgroup_check_accepts_both_versions(tmp_path: Path) -> None:
    assert checks.cgroup(tmp_path).state == MISSING
    (tmp_path / "memory").mkdir()
    assert checks.cgroup(tmp_path).state == OK
    (tmp_path / "cgroup.controllers").write_text("cpu memory\n")
    assert (checks.cgroup(tmp_path).state, checks.cgroup(tmp_path).fix) == (OK, "")


def test_unreadable_kernel_log_is_missing_with_a_fix(tmp_path: Path) -> None:
    found = checks.kmsg(tmp_path / "kmsg")
    assert found.state == MISSING and found.fix
    (tmp_path / "kmsg").touch()
    assert checks.kmsg(tmp_path / "kmsg").state == OK


def test_slow_disk_is_reported_with_its_consequence(tmp_path: Path) -> None:
    assert disk.slow_warning(disk.SYNC_SLOW_MS) == ""
    assert "20.0 ms" in disk.slow_warning(20.0) and "50 commits per second" in disk.slow_warning(
        20.0
    )
    assert disk.sync_ms(tmp_path) > 0


def test_kind_of_a_network_file_system_comes_from_its_type(
    tmp_path: Path,
) -> None:
    assert disk.network_kind(tmp_path / "not" / "there") == ""
    kinds = dict(disk.NETWORK_TYPES)
    try:
        disk.NETWORK_TYPES[0x9FA0] = "proc"
        assert disk.network_kind(Path("/proc/self")) == "proc"
    finally:
        disk.NETWORK_TYPES.clear()
        disk.NETWORK_TYPES.update(kinds)


def test_port_of_this_state_directorys_own_cluster_is_no_fault(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.getsockname()[1]
        foreign = checks.port(number, tmp_path)
        assert foreign.state == WRONG and "--state" in foreign.fix
        gateway = ticket(os.getpid())
        assert gateway is not None
        runfile.write(tmp_path, {"api_gateway": gateway}, ready=True)
        own = checks.port(number, tmp_path)
    assert (own.state, own.fix) == (OK, "") and str(tmp_path) in own.found
