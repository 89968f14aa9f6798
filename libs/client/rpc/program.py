"""The program that `ClusterClient.submit_job` runs: its command, and what is sent along.

A program is a file, a directory with a main file, or a path on the nodes. It gets the input's path
as its first argument. Tests: tests/unit/test_client_program.py.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.client.errors import InvalidRequest
from libs.client.fields import gpu_fields

# Ending of a program -> what runs it.
RUNS: Final = {".py": "python3", ".sh": "sh"}
MAIN: Final = ("main.py", "main.sh")
INPUT_JSON: Final = "input.json"
INPUT_BYTES: Final = "input.bin"
# Names of `gpu_requirements` beside the fields of a job.
GPU_NAMES: Final = {"count": "gpus", "type": "model", "memory": "gpu_memory"}
MEMORY_GB: Final = "memory_gb"


class Program(NamedTuple):
    """A command, with the directory and the files that it needs beside it on the node."""

    command: tuple[str, ...]
    directory: Path | None
    files: dict[str, bytes]

    @property
    def brings_files(self) -> bool:
        return self.directory is not None or bool(self.files)


def program_of(
    model_path: str | os.PathLike[str],
    input_data: Any = None,  # noqa: ANN401  whatever JSON can hold
) -> Program:
    """Return the program of a path and its input. Raises InvalidRequest naming the argument."""
    path = Path(model_path)
    given = _input(input_data)
    directory: Path | None = None
    files = dict(given)
    if path.is_dir():
        directory = path
        name = next((each for each in MAIN if (path / each).is_file()), None)
        if name is None:
            raise InvalidRequest(
                f"model_path: the directory {path} has none of {', '.join(MAIN)}: add one, or name "
                "the program's file",
                field="model_path",
            )
        if taken := [each for each in given if (path / each).exists()]:
            raise InvalidRequest(
                f"input_data: {path} has a file {taken[0]} itself: rename it", field="input_data"
            )
    elif path.is_file():
        name = path.name
        if name in given:
            raise InvalidRequest(
                f"input_data: the input would have the name of the program, {name}: rename it",
                field="input_data",
            )
        files[name] = path.read_bytes()
    elif path.is_absolute():
        name = str(path)  # on the nodes
    else:
        raise InvalidRequest(
            f"model_path: {path} does not exist here: give a file, a directory, or the absolute "
            "path of a program on the nodes",
            field="model_path",
        )
    return Program((_runs(name), name, *given), directory, files)


def _runs(name: str) -> str:
    found = RUNS.get(Path(name).suffix)
    if found is None:
        raise InvalidRequest(
            f"model_path: {name} is not a program: its name must end in {' or '.join(RUNS)}",
            field="model_path",
        )
    return found


def _input(value: Any) -> dict[str, bytes]:  # noqa: ANN401  whatever JSON can hold
    """Return the input as a file: a path's own, bytes as they are, everything else as JSON."""
    if value is None:
        return {}
    if isinstance(value, bytes | bytearray | memoryview):
        return {INPUT_BYTES: bytes(value)}
    if isinstance(value, os.PathLike):
        path = Path(value)
        if not path.is_file():
            raise InvalidRequest(
                f"input_data: {path} is not a file: give a file, bytes, or data for JSON",
                field="input_data",
            )
        return {path.name: path.read_bytes()}
    try:
        return {INPUT_JSON: json.dumps(value, allow_nan=False).encode()}
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"input_data: it has no form in JSON ({error}): give bytes or a path",
            field="input_data",
        ) from error


def gpu_requirements_of(value: Any) -> dict[str, Any]:  # noqa: ANN401  a number or a mapping
    """Return the fields of a job for `gpu_requirements`. Raises InvalidRequest.

    `value` is a number of GPUs (below 1 a part of one), or a mapping of fields.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        return gpu_fields(value)
    found: dict[str, Any] = {}
    for name, given in value.items():
        field = str(GPU_NAMES.get(name, name))
        if name == MEMORY_GB:
            field, given = "gpu_memory", f"{given}GiB"
        if field in found:
            raise InvalidRequest(
                f"gpu_requirements: {field} is given twice", field="gpu_requirements"
            )
        found[field] = given
    return found | gpu_fields(found.pop("gpus", None))
