"""`muster prune`: delete the output of ended jobs from the nodes."""

from collections.abc import Callable
from typing import Final

import click

from libs.cli.flags.sizes import parse_size, show_size
from libs.cli.gateway import Json, ask
from libs.cli.terminal.output import complain, listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.client.profile import read_profile
from libs.common.durations import parse_duration
from libs.common.quantities import counted

ANSWER_S: Final = 120.0
COLUMNS: Final = (
    Column("NODE"),
    Column("JOBS", right=True),
    Column("REMOVED", right=True),
    Column("KEPT JOBS", right=True),
    Column("KEPT", right=True),
    Column("NOTE", flexible=True),
)


@click.command(short_help="Delete the output of ended jobs from the nodes.")
@click.option(
    "--older-than",
    metavar="DURATION",
    help="Delete output of jobs that ended longer ago than this, for example 7d or 12h.",
)
@click.option(
    "--keep-bytes",
    metavar="SIZE",
    help="Delete the oldest output until each node keeps at most this size; 0 deletes all.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be deleted, and delete nothing.")
@listed
def command(
    older_than: str | None, keep_bytes: str | None, dry_run: bool, form: str, no_headers: bool
) -> int:
    """Delete the output of ended jobs from the nodes.

    Give --older-than, --keep-bytes or both. The limits also apply to uploads that no active job
    uses. The command never deletes the output of active jobs, nor output whose last part the
    cluster has not stored yet. Nodes also delete old output automatically (MUSTER_KEEP_HOURS,
    MUSTER_KEEP_BYTES and MUSTER_KEEP_JOBS).

    \b
    muster prune --older-than 7d
    muster prune --keep-bytes 10GiB --dry-run
    """
    body = {
        "older_than_s": _read(parse_duration, older_than),
        "keep_bytes": _read(parse_size, keep_bytes),
        "dry_run": dry_run,
    }
    if older_than is None and keep_bytes is None:
        raise click.UsageError("no limit: give --older-than 7d, --keep-bytes 10GiB or both")
    answer = ask(read_profile(), "POST", "/v1/prune", body=body, answer_s=ANSWER_S)
    silent = [str(node["node_id"]) for node in answer["nodes"] if node["error"]]
    if not print_value(answer, form):
        print_table(
            COLUMNS, [_row(node) for node in answer["nodes"]], not no_headers, form == "wide"
        )
        verb = "would be removed" if dry_run else "removed"
        size = show_size(answer["size_bytes"] + answer["uploads_bytes"])
        click.echo(
            f"{counted(answer['jobs'], 'job')} and {counted(answer['uploads'], 'upload')}, "
            f"{size} {verb}"
        )
    if silent:
        complain(f"these nodes did not answer in full: {', '.join(silent)}")
    return 1 if silent else 0


def _read(parse: Callable[[str], int], text: str | None) -> int | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def _row(node: Json) -> list[str]:
    held = f"{node['uncopied']} not copied off yet" if node["uncopied"] else ""
    removed, kept = show_size(node["size_bytes"]), show_size(node["bytes_left"])
    return [
        node["node_id"],
        str(node["jobs"]),
        removed,
        str(node["jobs_left"]),
        kept,
        node["error"] or held,
    ]
