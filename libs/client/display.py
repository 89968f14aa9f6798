"""Answers as notebooks and terminals show them.

Pure. Tests: tests/unit/test_client_display.py.
"""

from html import escape
from typing import Any, Final

import msgspec

CELL_CHARS_MAX: Final = 200
ROWS_MAX: Final = 200


class Shown(msgspec.Struct):
    """The common part of all answers: a table in a notebook."""

    def _repr_html_(self) -> str:
        return table_of(self)


def table_of(shown: msgspec.Struct) -> str:
    """Return the fields that are set as an HTML table. Every text is escaped."""
    rows = [
        f"<tr><th>{escape(field.name)}</th><td>{_cell(getattr(shown, field.name))}</td></tr>"
        for field in msgspec.structs.fields(type(shown))
        if getattr(shown, field.name) not in ("", None, [], {}, ())
    ]
    return f"<table>{''.join(rows[:ROWS_MAX])}</table>"


def _cell(value: object) -> str:
    if isinstance(value, list | tuple):
        text = ", ".join(map(_text, value))
    elif isinstance(value, dict):
        text = ", ".join(f"{name}={_text(each)}" for name, each in value.items())
    else:
        text = _text(value)
    return escape(text if len(text) <= CELL_CHARS_MAX else f"{text[:CELL_CHARS_MAX]}...")


def _text(value: object) -> str:
    return repr(value) if isinstance(value, msgspec.Struct) else str(value)


def end_words(job: Any) -> str:  # noqa: ANN401  a JobShown, which imports this module
    """Return how a job ended: `is failed with exit code 3 (out_of_memory)`."""
    code = "" if job.exit_code is None else f" with exit code {job.exit_code}"
    why = f" ({job.reason})" if job.reason not in ("", job.state) else ""
    return f"is {job.state}{code}{why}"


def job_line(job: Any) -> str:  # noqa: ANN401  a JobShown, which imports this module
    """Return a job in one line: `<Job jx2m4kqp3da train: running on node-1>`."""
    name = f" {job.name}" if job.name else ""
    where = f" on {', '.join(job.node_ids[:3])}" if job.node_ids else ""
    more = f" and {len(job.node_ids) - 3} more" if len(job.node_ids) > 3 else ""
    code = "" if job.exit_code is None else f", exit code {job.exit_code}"
    return f"<Job {job.id}{name}: {job.state}{where}{more}{code}>"
