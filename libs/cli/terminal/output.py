"""The output of verbs: tables for people, JSON or YAML for programs, error lines on stderr.

Only a terminal gets colours and truncated lines. JSON and YAML hold the gateway's fields unchanged.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from libs.cli.terminal.table import Column, paint, render

F = TypeVar("F", bound=Callable[..., Any])


def formatted(verb: F) -> F:
    """Add the option `-o` of verbs that list or describe."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(["table", "wide", "json", "yaml"]),
        default="table",
        help="Output format.",
    )(verb)


def listed(verb: F) -> F:
    """Add the options `-o` and `--no-headers` of verbs that list."""
    return formatted(
        click.option("--no-headers", is_flag=True, help="Do not print column headers.")(verb)
    )


def coloured() -> bool:
    """Return True if stdout is a terminal that wants colours (https://no-color.org)."""
    return (
        sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def terminal_width() -> int:
    """Return the width of the terminal, or 0 if stdout is not a terminal."""
    if not sys.stdout.isatty():
        return 0
    import shutil  # only a terminal has a width

    return shutil.get_terminal_size().columns


def print_value(value: object, form: str) -> bool:
    """Print JSON or YAML and return True, or return False if `form` is a table."""
    if form == "json":
        print(json.dumps(value, indent=2, ensure_ascii=False))
    elif form == "yaml":
        import yaml  # imported here: it takes a third of the start time

        print(yaml.safe_dump(value, sort_keys=False, allow_unicode=True), end="")
    return form in ("json", "yaml")


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    headers: bool = True,
    wide: bool = False,
) -> None:
    """Print a table on stdout; with `wide` no cell is truncated."""
    for line in render(
        columns,
        rows,
        headers=headers,
        width=0 if wide else terminal_width(),
        colour=coloured(),
    ):
        print(line)


def tinted(text: str, colour: str) -> str:
    """Return `text` with a colour if stdout is a terminal that wants colours."""
    return paint(text, colour) if coloured() else text


def complain(text: str) -> None:
    """Print an error or a note as one line on stderr."""
    try:
        print(f"muster: {' '.join(text.split())}", file=sys.stderr, flush=True)
    except OSError:
        pass  # stderr is closed; the exit code still reports the error
