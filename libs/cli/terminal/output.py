"""What a verb prints: a table for people, JSON or YAML for programs, one line on stderr for a
fault.

Colours and cut lines only on a terminal; machine output is the gateway's own fields, unchanged, so
that it stays stable.
"""

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from libs.cli.terminal.table import Column, paint, render

F = TypeVar("F", bound=Callable[..., Any])


def formatted(verb: F) -> F:
    """The option `-o` that all verbs take which list or describe."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        help="How to print it.",
    )(verb)


def listed(verb: F) -> F:
    """`-o` and `--no-headers`."""
    return formatted(
        click.option("--no-headers", is_flag=True, help="Leave out the line of column titles.")(
            verb
        )
    )


def coloured() -> bool:
    """Whether stdout is a terminal that wants colours (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def terminal_width() -> int:
    """Columns of the terminal on stdout; 0 when it is none, and nothing is to be cut."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def print_value(value: object, form: str) -> bool:
    """Prints JSON or YAML and says so; False when a table is wanted."""
    if form == "json":
        print(json.dumps(value, indent=2, ensure_ascii=False))
    elif form == "yaml":
        import yaml  # only here: it costs a third of the start

        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")
    return form in ("json", "yaml")


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    headers: bool = True,
    wide: bool = False,
) -> None:
    """A table on stdout; with `wide` nothing is cut."""
    for line in render(columns, rows, headers, 0 if wide else terminal_width(), coloured()):
        print(line)


def tinted(text: str, colour: str) -> str:
    """`text` in a colour on a terminal, as it is elsewhere."""
    return paint(text, colour) if coloured() else text


def complain(text: str) -> None:
    """One line on stderr, as every fault and every note is said."""
    try:
        print(f"muster: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except OSError:
        pass  # nobody reads stderr any more; the exit code still says it
