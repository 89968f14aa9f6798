"""Functions as uploads: the same function gives the same archive, and the program on the node runs
it with no other package than Python.
"""

import hashlib
import io
import json
import os
import pickle
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from libs.client import archive
from libs.client.errors import FunctionFailed, InvalidRequest, PythonMismatch
from libs.client.function import outcome, packed, runner
from libs.client.models.jobs import JobShown
from libs.common.safety.unpacking import unpack

JOB = JobShown(id="j1", state="completed", node_ids=["node-1"])


class Odd(Exception):
    """An exception that cannot be unpickled from its arguments."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def refuse() -> None:
    raise RuntimeError("not here")


class Refusing(Exception):
    """Its class refuses to be made from a pickle, as one may whose module needs a device."""

    def __reduce__(self) -> tuple[Any, ...]:
        return refuse, ()


def written(directory: Path | None, files: dict[str, bytes]) -> tuple[str, bytes]:
    file = io.BytesIO()
    sha256 = archive.write(file, directory, files)
    return sha256, file.getvalue()


def ran(
    folder: Path,
    function: Callable[..., object],
    *calls: packed.Arguments,
    number: int | None = None,
) -> tuple[int, str, bytes]:
    """Exit code, errors and outcome of the program, run in the unpacked archive as on a node."""
    _, data = written(None, packed.files_of(function, calls))
    unpack(io.BytesIO(data), folder / "files", 1_000)
    environ = {"PATH": os.environ["PATH"]}
    if number is not None:
        environ["MUSTER_ARRAY_TASK_ID"] = str(number)
    done = subprocess.run(
        [sys.executable, "-S", "-u", packed.PROGRAM],
        cwd=folder / "files",
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr, (folder / "files" / OUTCOME).read_bytes()


OUTCOME = f"{runner.FOLDER}/{runner.OUTCOME}"


def test_the_result_comes_back(tmp_path: Path) -> None:
    offset = 40
    code, err, data = ran(tmp_path, lambda one, two: one + two + offset, ((1,), {"two": 1}))
    assert (code, err) == (0, "")
    assert outcome.value_of(data, JOB) == 42


def test_an_element_of_an_array_takes_its_own_arguments(tmp_path: Path) -> None:
    _, _, data = ran(tmp_path, str, ((7,), {}), ((8,), {}), number=1)
    assert outcome.value_of(data, JOB) == "8"


def test_an_exception_comes_back_with_the_nodes_traceback(tmp_path: Path) -> None:
    def fails() -> None:
        raise KeyError("absent")

    code, err, data = ran(tmp_path, fails, ((), {}))
    assert code == 1 and "KeyError: 'absent'" in err
    with pytest.raises(KeyError) as found:
        outcome.value_of(data, JOB)
    (note,) = found.value.__notes__
    assert "in job j1 on node-1" in note and "in fails" in note


def test_an_exception_that_cannot_travel_is_reported_with_its_text(tmp_path: Path) -> None:
    def fails() -> None:
        raise Odd(1, 2)

    _, _, data = ran(tmp_path, fails, ((), {}))
    with pytest.raises(FunctionFailed, match="1 and 2") as found:
        outcome.value_of(data, JOB)
    assert "in fails" in found.value.traceback


def test_a_result_that_cannot_be_pickled_is_an_exception(tmp_path: Path) -> None:
    _, _, data = ran(tmp_path, lambda: (number for number in ()), ((), {}))
    with pytest.raises(TypeError, match="generator"):
        outcome.value_of(data, JOB)


def test_a_result_over_the_bound_is_an_exception(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = packed.files_of(bytes, [((100,), {})])
    program = files[packed.PROGRAM].replace(
        b"RESULT_BYTES_MAX = 64 << 20", b"RESULT_BYTES_MAX = 99"
    )
    monkeypatch.setattr(packed, "files_of", lambda *_: {**files, packed.PROGRAM: program})
    _, _, data = ran(tmp_path, bytes, ((100,), {}))
    head = json.loads(data.partition(b"\n")[0])
    assert head["state"] == runner.RAISED and "at most 99 travel" in head["text"]


def test_another_version_of_python_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "VERSION", "3.0")
    code, err, data = ran(tmp_path, str, ((), {}))
    assert code == 1 and "was pickled by Python 3.0" in err
    with pytest.raises(PythonMismatch, match=r"choose another interpreter with python="):
        outcome.value_of(data, JOB)


@pytest.mark.parametrize("data", [b"", b"no json\n", b"{}\n", b"[]\n"])
def test_a_damaged_outcome_is_a_failure(data: bytes) -> None:
    with pytest.raises(FunctionFailed, match="damaged"):
        outcome.value_of(data, JOB)


@pytest.mark.parametrize(
    ("state", "payload", "text"),
    [
        ("returned", b"no pickle", "cannot be unpickled"),
        ("raised", b"\x80\x04K\x01.", "ValueError: x"),
        ("raised", b"", "ValueError: x"),
    ],
)
def test_a_payload_that_is_no_pickle_or_no_exception_is_a_failure(
    state: str, payload: bytes, text: str
) -> None:
    head = json.dumps({"state": state, "text": "Traceback\nValueError: x"}).encode()
    with pytest.raises(FunctionFailed, match=text):
        outcome.value_of(head + b"\n" + payload, JOB)


def test_what_cannot_be_pickled_is_refused_by_the_field(tmp_path: Path) -> None:
    with open(tmp_path / "file", "w") as file, pytest.raises(InvalidRequest) as found:
        packed.files_of(lambda: file.name, [((), {})])
    assert found.value.field == "function"


def test_what_the_user_registered_with_cloudpickle_stays_registered() -> None:
    module = sys.modules[__name__]
    packed.files_of(written, [((), {})])
    assert cloudpickle.list_registry_pickle_by_value() == set()
    cloudpickle.register_pickle_by_value(module)
    packed.files_of(written, [((), {})])
    assert cloudpickle.list_registry_pickle_by_value() == {__name__}
    cloudpickle.unregister_pickle_by_value(module)


def test_a_function_over_the_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PICKLE_BYTES_MAX", 10)
    with pytest.raises(InvalidRequest, match="at most 10 travel"):
        packed.files_of(str, [((), {})])
    with pytest.raises(InvalidRequest, match="items: 0 calls"):
        packed.files_of(str, [])


def test_without_cloudpickle_the_message_says_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidRequest, match=r"pip install 'muster-gpu\[client\]'"):
        packed.files_of(str, [((), {})])


def test_the_node_is_searched_for_the_same_version_unless_an_interpreter_is_named() -> None:
    assert packed.command("/opt/python") == ["/opt/python", "-u", packed.PROGRAM]
    assert f"command -v python{packed.VERSION} " in packed.command(None)[2]


def test_a_job_has_the_name_of_its_function() -> None:
    fields: dict[str, Any] = {"gpus": 2}
    assert packed.job_fields(written, fields) == {"name": "written", "gpus": 2}
    assert packed.job_fields(lambda: 0, {}) == {"name": "lambda"}
    assert packed.job_fields(written, {"name": "mine"}) == {"name": "mine"}


def test_the_entry_point_of_an_image_does_not_run_instead_of_python() -> None:
    found = packed.job_fields(written, {"image": "a", "container": {"user": "1"}})
    assert found["container"] == {"entrypoint": [], "user": "1"}
    assert packed.job_fields(written, {"image": "a"})["container"] == {"entrypoint": []}


def test_the_same_content_gives_the_same_archive(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("x = 1\n")
    first, second = (
        written(tmp_path, {"a/": b"", "a/b": b"1"}),
        written(tmp_path, {"a/": b"", "a/b": b"1"}),
    )
    assert first == second and first[0] == hashlib.sha256(first[1]).hexdigest()
    with tarfile.open(fileobj=io.BytesIO(first[1])) as tar:
        assert tar.getnames() == ["module.py", "a", "a/b"]
    assert written(tmp_path, {})[0] != first[0]


def test_a_directory_that_cannot_be_packed_is_refused_by_the_field(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest) as found:
        written(tmp_path / "absent", {})
    assert found.value.field == "upload"


@pytest.mark.parametrize("state", [runner.RETURNED, runner.RAISED])
def test_whatever_is_raised_while_unpickling_is_a_failure_of_the_function(state: str) -> None:
    head = json.dumps({"state": state, "text": "the node's lines"}).encode()
    with pytest.raises(FunctionFailed, match="gave no result") as found:
        outcome.value_of(head + b"\n" + pickle.dumps(Refusing()), JOB)
    assert isinstance(found.value.__cause__, RuntimeError)
