"""Device names in the files of the Container Device Interface."""

import json
import logging
from pathlib import Path

import pytest
import yaml

from services.node_agent.runtimes import cdi


def spec(kind: str, *names: str) -> dict[str, object]:
    return {
        "cdiVersion": "0.6.0",
        "kind": kind,
        "devices": [{"name": name, "containerEdits": {}} for name in names],
    }


def test_devices_of_json_and_yaml_files_have_full_names(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps(spec("nvidia.com/gpu", "GPU-1", "all")))
    (tmp_path / "b.yaml").write_text(yaml.safe_dump(spec("amd.com/gpu", "GPU-2")))
    (tmp_path / "notes.txt").write_text("not a CDI file")
    assert cdi.names([str(tmp_path), str(tmp_path / "absent")]) == {
        "GPU-1": "nvidia.com/gpu=GPU-1",
        "all": "nvidia.com/gpu=all",
        "GPU-2": "amd.com/gpu=GPU-2",
    }


def test_a_file_of_a_later_folder_wins(tmp_path: Path) -> None:
    for folder, kind in (("one", "a.com/gpu"), ("two", "b.com/gpu")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.json").write_text(json.dumps(spec(kind, "GPU-1")))
    assert cdi.names([str(tmp_path / "one"), str(tmp_path / "two")]) == {"GPU-1": "b.com/gpu=GPU-1"}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '"text"',
        "",
        '{"kind": 3, "devices": []}',
        '{"kind": "a.com/gpu"}',
        '{"kind": "a.com/gpu", "devices": {"name": "GPU-1"}}',
        '{"kind": "a.com/gpu", "devices": [3, {"name": 4}, {}]}',
        "\x00\x01",
    ],
)
def test_a_broken_file_hides_no_other_one(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.yaml").write_text(text)
    (tmp_path / "b.json").write_text(json.dumps(spec("a.com/gpu", "GPU-1")))
    with caplog.at_level(logging.WARNING):
        assert cdi.names([str(tmp_path)]) == {"GPU-1": "a.com/gpu=GPU-1"}


def test_a_file_that_is_too_large_is_skipped_and_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.json").write_bytes(b" " * (cdi.FILE_BYTES_MAX + 1))
    assert cdi.names([str(tmp_path)]) == {}
    assert "a.json" in caplog.text


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    for name in ("GPU-1", "GPU-22"):
        path.write_text(json.dumps(spec("a.com/gpu", name)))
        assert cdi.names([str(tmp_path)]) == {name: f"a.com/gpu={name}"}
