"""NCCL's RAS over a real socket, and dumps of the flight recorder that may be anything."""

import json
import os
import pickle
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from libs.common.diagnosis.evidence import Collective, RasRank
from services.node_agent.diagnosis import recorders
from services.node_agent.diagnosis.dump_reading import DUMP_BYTES, Recorded

STATUS = {
    "communicators": [
        {
            "hash": "0xab",
            "size": 2,
            "ranks": [{"rank": 0, "collective_counts": {"AllReduce": 7}}],
            "missing_ranks": [{"rank": 1}],
        }
    ]
}
ENTRY = {
    "collective_seq_id": 9,
    "profiling_name": "nccl:all_reduce",
    "process_group": ("0", "default_pg"),
    "state": "scheduled",
}


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Serve one client as RAS does: read its commands, answer, and close."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                while b"STATUS" not in b"".join(asked):
                    asked.append(connection.recv(1_024))
                connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", asked
        thread.join(5)


def test_ras_is_asked_for_json_and_its_greeting_is_skipped() -> None:
    greeting = b"SERVER PROTOCOL 2\nOK\nOK\n"
    with answering(greeting + json.dumps(STATUS).encode()) as (address, asked):
        (found,) = recorders.communicators(address)
    assert found.ranks == (RasRank(0, {"AllReduce": 7}), RasRank(1, missing=True))
    assert b"SET FORMAT json" in b"".join(asked)


def test_an_answer_without_json_is_refused_with_the_reason() -> None:
    plain = b"NCCL version 2.26\n"
    with answering(plain) as (address, _), pytest.raises(ValueError, match="without JSON"):
        recorders.communicators(address)
    with answering(b"{ no json") as (address, _), pytest.raises(ValueError, match="Expecting"):
        recorders.communicators(address)


@pytest.mark.parametrize("address", ["10.0.0.1:80", "127.0.0.1:0", "127.0.0.1:99999", "localhost"])
def test_only_ports_of_this_machine_are_asked(address: str) -> None:
    with pytest.raises(ValueError, match="is no port of"):
        recorders.communicators(address)


@pytest.mark.parametrize("form", [pickle.dumps, lambda dump: json.dumps(dump).encode()])
def test_a_dump_of_the_flight_recorder_is_read(tmp_path: Path, form: object) -> None:
    assert recorders.recorded(str(tmp_path), [3], ()) == {}
    (tmp_path / "nccl_trace_rank_3").write_bytes(form({"entries": [ENTRY]}))  # type: ignore[operator]
    read = Recorded((Collective("0", 9, "all_reduce"),))
    assert recorders.recorded(str(tmp_path), [2, 3], ()) == {3: read}


def test_a_dump_from_before_the_silence_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "nccl_trace_rank_3"
    path.write_bytes(pickle.dumps({"entries": [ENTRY]}))
    os.utime(path, (100, 100))
    assert list(recorders.recorded(str(tmp_path), [3], (), since_s=100)) == [3]
    assert recorders.recorded(str(tmp_path), [3], (), since_s=101) == {}


class Evil:
    """Runs a command when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


def test_a_dump_with_objects_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps(Evil(tmp_path / "made")))
    found = recorders.recorded(str(tmp_path), [0], ())
    assert "not plain data" in found[0].error
    assert not (tmp_path / "made").exists()


def test_a_dump_that_takes_any_memory_harms_neither_the_agent_nor_other_dumps(
    tmp_path: Path,
) -> None:
    # LONG_BINPUT keeps a value under a number, and the reader's table grows to that number.
    large = b"\x80\x02Nr" + (0x7FFF_FFFF).to_bytes(4, "little") + b"."
    (tmp_path / "nccl_trace_rank_0").write_bytes(large)
    (tmp_path / "nccl_trace_rank_1").write_bytes(pickle.dumps({"entries": [ENTRY]}))
    ranks = "[" + ",".join(map(str, range(60_000))) + "]"
    groups = [{**ENTRY, "process_group": (str(number), "")} for number in range(8)]
    wide = {"pg_config": {str(number): {"ranks": ranks} for number in range(8)}, "entries": groups}
    (tmp_path / "nccl_trace_rank_2").write_bytes(pickle.dumps(wide))
    found = recorders.recorded(str(tmp_path), [0, 1, 2], ())
    assert "MemoryError" in found[0].error
    assert found[1] == Recorded((Collective("0", 9, "all_reduce"),))
    assert "at most" in found[2].error


def test_a_reader_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    (tmp_path / "nccl_trace_rank_0").write_bytes(pickle.dumps({"entries": [ENTRY]}))
    found = recorders.recorded(str(tmp_path), [0], (), limit_s=0.001)
    assert "took more than" in found[0].error


def test_an_answer_of_ras_that_trickles_is_given_up_at_the_deadline() -> None:
    one, other = socket.socketpair()
    with one, other:
        other.sendall(b"x")
        with pytest.raises(TimeoutError, match="no whole answer"):
            recorders._until_end(one, time.monotonic())


def test_an_answer_of_ras_that_is_nested_too_deeply_is_refused() -> None:
    deep = b'{"a":' + b"[" * 500_000
    with answering(deep) as (address, _), pytest.raises(ValueError, match="nested too deeply"):
        recorders.communicators(address)


def test_a_link_a_pipe_or_a_huge_file_is_no_dump(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(pickle.dumps({"entries": [ENTRY]}))
    (tmp_path / "nccl_trace_rank_0").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "nccl_trace_rank_1")
    with (tmp_path / "nccl_trace_rank_2").open("wb") as file:
        file.truncate(DUMP_BYTES + 1)
    assert recorders.recorded(str(tmp_path), range(3), ()) == {}


def test_a_recorder_that_reads_its_pipe_is_asked_for_a_dump(tmp_path: Path) -> None:
    pipe = tmp_path / "nccl_pipe_rank_0.pipe"
    os.mkfifo(pipe)
    os.mkfifo(tmp_path / "nccl_pipe_rank_1.pipe")  # nobody reads it
    (tmp_path / "nccl_pipe_rank_2.pipe").write_bytes(b"")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    recorders.ask_for_dumps(str(tmp_path), [0, 1, 2, 3], ())
    assert os.read(reader, 8) == b"1\n"
    assert (tmp_path / "nccl_pipe_rank_2.pipe").read_bytes() == b""
    os.close(reader)
