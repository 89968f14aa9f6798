"""`muster config`: check or show the configuration that a process started here would use."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.cli.terminal.table import Column

if TYPE_CHECKING:
    from libs.common.settings.configuration import Configuration

COLUMNS = (Column("SETTING"), Column("VALUE", flexible=True), Column("FROM"))


@click.group(short_help="Check the configuration, or show where each value comes from.")
def command() -> None:
    """Check the configuration, or show where each value comes from.

    This is the configuration that a service or muster up would read if you started it here. A
    running process reads its configuration once, when it starts.
    """


@command.command()
def check() -> int:
    """Print every problem of the configuration.

    Exit code: 0 without a problem, else 2.

    \b
    muster config check && systemctl restart muster-agent
    """
    from libs.common.settings import configuration

    resolved = configuration.resolve()
    problems = [*resolved.problems, *_missing_files(resolved)]
    for problem in problems:
        complain(problem)
    if not problems:
        given = sum(source != configuration.DEFAULT for source in resolved.sources.values())
        print(
            f"the configuration is valid: {len(resolved.sources)} settings, {given} of them set "
            "explicitly"
        )
    return 2 if problems else 0


def _missing_files(resolved: "Configuration") -> list[str]:
    """Return a problem for each configured file that this user cannot read."""
    named = {
        name: str(getattr(resolved.settings, name))
        for name in resolved.sources
        if name.endswith("_file")
    }
    return [
        f"MUSTER_{name.upper()}: {path} cannot be read: check that it exists and its permissions"
        for name, path in named.items()
        if path and not os.access(path, os.R_OK)
    ]


@command.command()
@click.option("--changed", is_flag=True, help="Show only settings that differ from their default.")
@listed
def show(changed: bool, form: str, no_headers: bool) -> int:
    """Print each setting with its value and its source. Passwords are hidden.

    \b
    muster config show --changed
    muster config show -o json
    """
    from libs.common.settings import configuration

    resolved = configuration.resolve()
    rows = [
        row for row in rows_of(resolved) if not changed or row["source"] != configuration.DEFAULT
    ]
    if not print_value(rows, form):
        print_table(COLUMNS, [list(row.values()) for row in rows], not no_headers, form == "wide")
    for problem in resolved.problems:
        complain(problem)
    return 2 if resolved.problems else 0


def rows_of(resolved: "Configuration") -> list[dict[str, str]]:
    """Return the rows that `config show` and the support bundle print."""
    from libs.common.settings.settings import shown

    here = f"{Path.cwd()}/"
    return [
        {
            "setting": name,
            "value": shown(name, getattr(resolved.settings, name)),
            "source": source.removeprefix(here),
        }
        for name, source in resolved.sources.items()
    ]
