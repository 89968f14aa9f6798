"""`muster trace`: trace a running job, all its ranks on one clock."""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

import click

from libs.cli.flags.durations import DURATION
from libs.cli.flags.sizes import show_size
from libs.cli.gateway import Json, ask, job_path, opened
from libs.cli.terminal.output import complain, formatted, print_table, print_value
from libs.cli.traces import COLUMNS, LIST_COLUMNS, costs, list_row, ranks_of, rows
from libs.client.profile import Profile, read_profile
from libs.common.errors import Refused
from libs.common.quantities import counted

# Pauses between two requests for the state of a trace.
LOOK_S: Final = 0.5
OVER: Final = ("ready", "failed")


@click.command(short_help="Trace a running job: kernels, copies and operators of all ranks.")
@click.argument("job", metavar="JOB")
@click.option(
    "--rank",
    "ranks",
    metavar="R",
    multiple=True,
    help="Trace only this rank or these, for example 0 or 0,7 (default: all; repeatable).",
)
@click.option(
    "--for",
    "duration_s",
    type=DURATION,
    default=10,
    metavar="DURATION",
    show_default="10s",
    help="How long to trace, at most 60s.",
)
@click.option("--stacks", is_flag=True, help="Add Python call stacks.")
@click.option("--shapes", is_flag=True, help="Add the shapes of the inputs of operators.")
@click.option("--memory", is_flag=True, help="Add allocations of memory.")
@click.option(
    "--file", "path", metavar="FILE", help="Write to this file (default: trace-JOB-ID.json.gz)."
)
@click.option("--list", "listing", is_flag=True, help="List the traces that the nodes keep.")
@click.option("--get", "name", metavar="ID", help="Download a trace that the nodes keep.")
@formatted
def command(
    job: str,
    ranks: tuple[str, ...],
    duration_s: int,
    stacks: bool,
    shapes: bool,
    memory: bool,
    path: str | None,
    listing: bool,
    name: str | None,
    form: str,
) -> int:
    """Trace a running job: kernels, copies and operators of all ranks.

    PyTorch programs need no change. The trace begins 8 s after the command, at the same moment on
    all ranks. The command measures the clocks of the nodes and writes one file with all ranks on
    the clock of the first node. Open it at https://ui.perfetto.dev or in chrome://tracing.

    \b
    muster trace train
    muster trace train --rank 0,7 --for 2s --stacks
    muster trace train --list
    muster trace train --get 1-0123456789abcdef --file slow.json.gz
    """
    profile = read_profile()
    if listing:
        return _list(profile, job, form)
    if name is None:
        asked = _ranks(ranks)
        body = {"duration_s": duration_s, "ranks": asked, "stacks": stacks}
        body |= {"shapes": shapes, "memory": memory}
        begun = ask(profile, "POST", job_path(job, "traces"), body=body)
        name = str(begun["id"])
        complain(f"tracing {counted(len(begun['ranks']), 'rank')} for {duration_s} s")
    trace = _awaited(profile, job, name)
    if trace["state"] != "ready":
        complain(f"cannot trace {job}: {_why(trace)}")
        return 1
    place = Path(path or f"trace-{trace['job_id']}-{trace['id']}.json.gz")
    _download(profile, job, trace, place)
    if not print_value(trace, form):
        print_table(COLUMNS, rows(trace), True, form == "wide")
        click.echo(costs(trace))
        click.echo(f"wrote {place} ({show_size(place.stat().st_size)}): open it in Perfetto")
    return 0


def _ranks(given: tuple[str, ...]) -> list[int]:
    try:
        return ranks_of(given)
    except ValueError as error:
        raise click.UsageError(f"--rank: {error}") from error


def _list(profile: Profile, job: str, form: str) -> int:
    found = ask(profile, "GET", job_path(job, "traces"))["traces"]
    if not print_value(found, form):
        print_table(LIST_COLUMNS, [list_row(trace) for trace in found], True, form == "wide")
    return 0


def _awaited(profile: Profile, job: str, name: str) -> Json:
    """Return the trace once it is over."""
    while True:
        trace = ask(profile, "GET", job_path(job, "traces", name))
        if trace["state"] in OVER:
            return trace
        time.sleep(LOOK_S)


def _why(trace: Json) -> str:
    """Return why there is no trace, from the ranks or the nodes."""
    parts = [f"rank {rank['rank']}: {rank['error']}" for rank in trace["ranks"] if rank["error"]]
    parts += [f"{node['node_id']}: {node['error']}" for node in trace["nodes"] if node["error"]]
    return "; ".join(dict.fromkeys(parts)) or "its nodes do not say why"


def _download(profile: Profile, job: str, trace: Json, place: Path) -> None:
    """Write the file under a temporary name, and rename it when it is complete."""
    if place.is_dir():
        raise Refused(f"{place} is a folder: choose another name")
    descriptor, part = tempfile.mkstemp(prefix=f".{place.name}.", suffix=".part", dir=place.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with opened(profile, job_path(job, "traces", str(trace["id"]), "file")) as answer:
                for piece in answer.pieces():
                    file.write(piece)
            os.fchmod(file.fileno(), 0o644)
        os.replace(part, place)
    finally:
        Path(part).unlink(missing_ok=True)
    sys.stdout.flush()
