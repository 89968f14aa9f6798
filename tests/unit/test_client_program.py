"""The command and the files of a program, and the fields of its GPU requirements."""

from pathlib import Path
from typing import Any

import pytest

from libs.client.errors import InvalidRequest
from libs.client.rpc.program import gpu_requirements_of, program_of


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "predict.py"
    path.write_text("print(1)")
    return path


def test_a_program_is_sent_with_its_input_as_json(program: Path) -> None:
    found = program_of(program, {"x": [1, 2]})
    assert found.command == ("python3", "predict.py", "input.json")
    assert found.files == {"predict.py": b"print(1)", "input.json": b'{"x": [1, 2]}'}
    assert found.directory is None and found.brings_files


def test_a_program_without_input_has_no_argument(program: Path) -> None:
    assert program_of(str(program)).command == ("python3", "predict.py")


def test_bytes_and_files_are_sent_as_they_are(program: Path, tmp_path: Path) -> None:
    assert program_of(program, b"\x00").files["input.bin"] == b"\x00"
    data = tmp_path / "data.csv"
    data.write_bytes(b"a,b")
    found = program_of(program, data)
    assert found.command[-1] == "data.csv" and found.files["data.csv"] == b"a,b"


def test_a_directory_runs_its_main_file(tmp_path: Path) -> None:
    (tmp_path / "main.sh").write_text("true")
    found = program_of(tmp_path, [1])
    assert found.command == ("sh", "main.sh", "input.json")
    assert found.directory == tmp_path and list(found.files) == ["input.json"]


def test_a_program_on_the_nodes_is_not_sent() -> None:
    found = program_of("/models/on/the/node.py")
    assert found.command == ("python3", "/models/on/the/node.py") and not found.brings_files
    assert program_of("/models/on/the/node.py", 5).files == {"input.json": b"5"}


def test_what_is_no_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    for path in ("absent.py", tmp_path / "weights.bin", tmp_path / "empty"):
        with pytest.raises(InvalidRequest) as error:
            program_of(path)
        assert error.value.field == "model_path"


def test_what_is_no_input_is_refused(tmp_path: Path, program: Path) -> None:
    (tmp_path / "main.py").write_text("")
    (tmp_path / "input.json").write_text("")
    for path, value in ((program, {1j}), (program, tmp_path / "absent"), (tmp_path, {})):
        with pytest.raises(InvalidRequest) as error:
            program_of(path, value)
        assert error.value.field == "input_data"
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / program.name).write_text("")
    with pytest.raises(InvalidRequest, match=r"name of the program, predict\.py"):
        program_of(program, tmp_path / "data" / program.name)
    with pytest.raises(InvalidRequest, match="no form in JSON"):
        program_of(program, float("nan"))


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        (None, {}),
        (2, {"gpus": 2}),
        (0.5, {"gpus": 1, "fraction": 0.5}),
        ({"count": 2, "memory_gb": 40}, {"gpus": 2, "gpu_memory": "40GiB"}),
        ({"gpus": 0.25, "type": "H100"}, {"gpus": 1, "fraction": 0.25, "model": "H100"}),
        ({"memory": "10GiB", "vendor": "nvidia"}, {"gpu_memory": "10GiB", "vendor": "nvidia"}),
    ],
)
def test_the_fields_of_requirements(value: Any, fields: dict[str, Any]) -> None:
    assert gpu_requirements_of(value) == fields


@pytest.mark.parametrize("value", [{"count": 1, "gpus": 2}, "two", 1.5, {"count": "x"}])
def test_requirements_that_make_no_sense_are_refused(value: Any) -> None:
    with pytest.raises(InvalidRequest):
        gpu_requirements_of(value)
