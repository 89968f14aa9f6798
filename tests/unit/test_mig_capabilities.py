"""By which nodes the MIG instances of a card are opened, and which of them a job may not open."""

import os
import stat
from pathlib import Path

import pytest

from libs.common.errors import Refused
from libs.common.model import GpuId
from services.node_agent.devices import capabilities as c
from services.node_agent.drivers.readings import MigInstance
from services.node_agent.drivers.sysfs import capabilities

CARD, OTHER = GpuId("GPU-3"), GpuId("GPU-4")
MINORS = (
    "config 1\nmonitor 2\ngpu3/gi0/access 3\ngpu3/gi0/ci0/access 4\ngpu3/gi1/access "
    "12\ngpu3/gi1/ci0/access 13\ngpu30/gi1/access 800\n"
)
INSTANCE = MigInstance(number=1, uuid="MIG-x", profile="3g.40gb", start=4, size=4)


def proc(
    folder: Path, minors: str = MINORS, devices: str = "195 nvidia\n511 nvidia-caps\n"
) -> Path:
    for path, text in (
        ("driver/nvidia/gpus/0000:1b:00.0/information", "Device Minor: \t 3\n"),
        ("driver/nvidia-caps/mig-minors", minors),
        ("devices", f"Character devices:\n{devices}\nBlock devices:\n259 blkext\n"),
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_the_driver_says_which_node_is_of_which_instance_of_a_card(tmp_path: Path) -> None:
    found = capabilities("0000:1b:00.0", proc(tmp_path))
    assert found == {
        "config": (511, 1),
        "monitor": (511, 2),
        "gi0/access": (511, 3),
        "gi0/ci0/access": (511, 4),
        "gi1/access": (511, 12),
        "gi1/ci0/access": (511, 13),
    }
    assert capabilities("0000:99:00.0", tmp_path) == {}
    assert capabilities("0000:1b:00.0", proc(tmp_path, devices="195 nvidia\n")) == {}
    assert capabilities("0000:1b:00.0", tmp_path / "none") == {}


def test_a_job_opens_its_own_instance_and_no_other_of_its_card_and_cuts_none(
    tmp_path: Path,
) -> None:
    known = {
        CARD: capabilities("0000:1b:00.0", proc(tmp_path)),
        OTHER: {"config": (511, 1), "monitor": (511, 2), "gi0/access": (511, 900)},
    }
    assert list(c.own(known, {CARD: INSTANCE.number})) == [(511, 12), (511, 13)]
    assert sorted(set(c.others(known, {CARD: INSTANCE.number}))) == [
        (511, 1),
        (511, 2),
        (511, 3),
        (511, 4),
    ]
    assert set(c.others(known, {})) == {(511, 1), (511, 2)} and list(c.own(known, {})) == []
    assert list(c.own({}, {CARD: 1})) == list(c.others({}, {CARD: 1})) == []


def test_a_node_that_is_not_there_is_made_or_the_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").mkdir()
    there = tmp_path / "nvidia-caps" / "nvidia-cap12"
    there.touch()
    c.make_nodes([(511, 12)], tmp_path)
    assert there.is_file()
    try:
        os.mknod(tmp_path / "probe", stat.S_IFCHR, os.makedev(511, 13))
    except OSError as error:
        pytest.skip(f"no device node can be made here: {error}")
    c.make_nodes([(511, 13)], tmp_path)
    made = (tmp_path / "nvidia-caps" / "nvidia-cap13").stat()
    assert stat.S_ISCHR(made.st_mode) and (made.st_rdev, stat.S_IMODE(made.st_mode)) == (
        os.makedev(511, 13),
        0o444,
    )


def test_where_no_node_can_be_made_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "nvidia-caps").touch()
    with pytest.raises(
        Refused, match="nvidia-cap13, by which a MIG instance is opened, cannot be made"
    ):
        c.make_nodes([(511, 13)], tmp_path)


def test_an_instance_has_the_slices_of_its_card_from_its_start_on() -> None:
    assert INSTANCE.slices == 0b1111_0000
