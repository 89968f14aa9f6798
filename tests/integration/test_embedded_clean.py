"""`muster clean`: it asks first, and removes the control groups of the agents too."""

from pathlib import Path

import pytest

from libs.embedded import commands, groups, shape
from libs.embedded.shape import Options, Shape


def test_clean_removes_only_after_the_user_confirmed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    shape.save(state, Shape(cluster_id="c"))
    monkeypatch.setattr("builtins.input", lambda _: "")
    assert commands.clean(Options(state=state)) == 1 and state.exists()
    monkeypatch.setattr("builtins.input", lambda _: "y")
    assert commands.clean(Options(state=state)) == 0 and not state.exists()
    assert commands.clean(Options(state=state)) == 0


def test_clean_removes_empty_control_groups_of_its_own_agents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, mounts = tmp_path / "state", tmp_path / "mountinfo"
    shape.save(state, Shape(cluster_id="c"))
    for node in ("node-1", "node-2"):
        (state / "services" / node).mkdir(parents=True)
    empty, busy = (tmp_path / "cpu" / "muster" / name for name in groups.names_of(state))
    foreign = empty.with_name("node-1-00000000")
    for group in (empty / "1.2", busy / "3.4" / "process", foreign):
        group.mkdir(parents=True)
    mounts.write_text(f"34 32 0:30 / {tmp_path / 'cpu'} rw - cgroup cgroup rw,cpu\n")
    monkeypatch.setattr(groups, "MOUNTS", mounts)
    monkeypatch.setenv("MUSTER_CGROUP", "muster")
    assert commands.clean(Options(state=state, yes=True)) == 0
    assert not empty.exists() and busy.exists() and foreign.exists()
