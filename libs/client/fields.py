"""The body of a submission from the arguments of a Python call.

Pure. The gateway checks the fields; here only what Python's types allow is brought into its form.
Tests: tests/unit/test_client_fields.py.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from libs.client.errors import InvalidRequest

STREAMS: Final = ("stdout", "stderr")
ELASTIC: Final = ".."


def job_body(
    command: str | Sequence[str],
    gpus: float | None = None,
    nodes: int | str | None = None,
    given: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Return the body of `POST /v1/jobs`. Raises InvalidRequest naming the field.

    Fields that are None are left out.
    """
    body: dict[str, Any] = {"command": words(command)}
    more = dict(given or {})
    body |= gpu_fields(more.pop("gpus", None) if gpus is None else gpus)
    body |= node_fields(more.pop("nodes", None) if nodes is None else nodes)
    return body | {name: value for name, value in more.items() if value is not None}


def words(command: object) -> list[str]:
    """Return the words of a command. A text is split as a shell does, without expansion."""
    if isinstance(command, str):
        try:
            return shlex.split(command)
        except ValueError as error:
            raise InvalidRequest(
                f"command: {command!r} cannot be split into words: {error}; give a list of words"
            ) from error
    if not isinstance(command, Sequence) or isinstance(command, bytes):
        raise InvalidRequest(
            f"command: expected a list of words or a text, got {type(command).__name__}"
        )
    return [str(word) for word in command]


def gpu_fields(gpus: object) -> dict[str, Any]:
    """Return the fields for a number of GPUs; below 1 it is a part of one GPU."""
    if gpus is None:
        return {}
    if isinstance(gpus, bool) or not isinstance(gpus, int | float):
        raise InvalidRequest(f"gpus: expected a number, got {gpus!r}")
    if not math.isfinite(gpus):
        raise InvalidRequest(f"gpus: {gpus} is not a number of GPUs: give for example 2, or 0.5")
    if gpus == int(gpus):
        return {"gpus": int(gpus)}
    if not 0 < gpus < 1:
        raise InvalidRequest(
            f"gpus: {gpus} is neither a whole number nor a part of one GPU: give for example 2, or "
            "0.5, or gpus=2 with fraction=0.5"
        )
    return {"gpus": 1, "fraction": gpus}


def node_fields(nodes: object) -> dict[str, Any]:
    """Return the fields for a number of nodes; "2..8" is an elastic gang."""
    if nodes is None:
        return {}
    if isinstance(nodes, str):
        least, elastic, most = nodes.partition(ELASTIC)
        if not nodes.isascii() or not least.isdigit() or (elastic and not most.isdigit()):
            raise InvalidRequest(f"nodes: {nodes!r} is not valid: give for example 4, or '2..8'")
        return {"nodes": int(least), **({"nodes_max": int(most)} if elastic else {})}
    return {"nodes": nodes}


def check_stream(stream: str | None) -> None:
    """Raise InvalidRequest unless the stream is None or one of a job's two."""
    if stream is not None and stream not in STREAMS:
        raise InvalidRequest(f"stream: {stream!r} is not known: give one of {', '.join(STREAMS)}")
