"""`muster simulate`: a trace through the scheduler in virtual time.

The work is done in services/scheduler/simulate.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from libs.cli.flags.durations import parse_duration, show_duration
from libs.cli.flags.numbers import Number
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column

SUMMARY: Final = (
    Column("ORDER"),
    Column("JOBS", right=True),
    Column("UTIL QUEUED", right=True),
    Column("UTIL RUN", right=True),
    Column("STRANDED", right=True),
    Column("DONE MEAN", right=True),
    Column("DONE P99", right=True),
    Column("WAIT P50", right=True),
    Column("WAIT P99", right=True),
    Column("PREEMPTED", right=True),
    Column("JAIN", right=True),
)
QUANTILES: Final = ("p50", "p90", "p99")

Json = dict[str, Any]


def _duration(_context: click.Context, _option: click.Parameter, text: str | None) -> int:
    try:
        return parse_duration(text) if text else 0
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(short_help="Replay a trace of jobs in virtual time through the scheduler.")
@click.option(
    "--trace",
    required=True,
    metavar="FILE",
    help="openb, Philly, Muri, or any CSV with job_id, submit_s, gpus, duration_s.",
)
@click.option(
    "--nodes",
    required=True,
    metavar="FILE|NxG",
    help="A list of nodes (openb's form), or 64x8: 64 nodes of 8 GPUs.",
)
@click.option(
    "--order", default="fifo", show_default=True, metavar="ORDER", help="The order of the queue."
)
@click.option("--compare", metavar="ORDER,...", help="Several orders, in one table.")
@click.option(
    "--place",
    default="fragmentation",
    show_default=True,
    metavar="STRATEGY",
    help="How nodes and devices are chosen.",
)
@click.option(
    "--backfill/--no-backfill",
    default=None,
    help="Whether jobs may pass the first one (default: not with fifo).",
)
@click.option(
    "--limits",
    type=float,
    default=0.0,
    metavar="N",
    help="Every job has a time limit of N times what it takes.",
)
@click.option(
    "--preempt",
    is_flag=True,
    help="Sort and place everything anew at each event, as published figures do.",
)
@click.option(
    "--restart-overhead",
    metavar="TIME",
    callback=_duration,
    help="With --preempt: what going on again costs a job (default 0).",
)
@click.option("--until", metavar="TIME", callback=_duration, help="Stop at this time of the trace.")
@click.option(
    "--speed",
    type=Number(),
    default=1.0,
    show_default=True,
    help="2: the same jobs come in half the time.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    help="The trace's jobs in another order at the same times (default: as they are).",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Save utilisation.svg and completion.svg.",
)
@listed
def command(
    trace: str,
    nodes: str,
    order: str,
    compare: str | None,
    place: str,
    backfill: bool | None,
    limits: float,
    preempt: bool,
    restart_overhead: int,
    until: int,
    speed: float,
    seed: int,
    plots: Path | None,
    form: str,
    no_headers: bool,
) -> int:
    """Replay a trace of jobs in virtual time through the scheduler.

    No cluster is needed. A FILE that is not here is looked for in the folder that MUSTER_TRACES
    names.

    \b
    muster simulate --trace jobs.csv --nodes 8x8
    muster simulate --trace philly/jobs.csv --nodes 64x8 --compare fifo,priority --plots out
    muster simulate --trace muri/trace1_jobs.csv --nodes 8x8 --preempt \\
        --restart-overhead 30s --compare fifo,srsf,las
    """
    if preempt and backfill is not None:
        raise click.UsageError(
            "--preempt passes over what does not fit: backfill is of the live scheduler"
        )
    if restart_overhead and not preempt:
        raise click.UsageError("--restart-overhead is for --preempt: without it nobody is stopped")
    ask: Json = {
        "trace": trace,
        "nodes": nodes,
        "orders": [name.strip() for name in (compare or order).split(",")],
        "place": place,
    }
    ask |= {
        "preempt": preempt,
        "overhead_s": restart_overhead,
        "until_s": until,
        "speed": speed,
        "seed": seed,
    }
    ask |= {"plots": str(plots or ""), "backfill": backfill, "limits": limits}
    # -P: a `services` directory where this is called must not be taken for ours.
    line = [sys.executable, "-P", "-m", "services.scheduler.simulate", json.dumps(ask)]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return done.returncode if done.returncode > 0 else 128 - done.returncode
    found = json.loads(done.stdout)
    if not print_value(found, form):
        _show(found, not no_headers, form == "wide")
    return 0


def _show(found: Json, headers: bool, wide: bool) -> None:
    """One line for each order; of a single one also who waited how long."""
    runs = found["runs"]
    print_table(SUMMARY, [_summary(run) for run in runs], headers, wide)
    if len(runs) == 1:
        for title, name in (("GPUS", "by_size"), ("TENANT", "by_tenant")):
            print()
            _show_waits(title, runs[0]["queue_delay_s"][name], headers, wide)


def _summary(run: Json) -> list[str]:
    util, done, wait = run["utilisation_pct"], run["completion_s"], run["queue_delay_s"]["all"]
    ended = (
        str(run["jobs"]) if run["completed"] == run["jobs"] else f"{run['completed']}/{run['jobs']}"
    )
    return [
        run["order"],
        ended,
        _percent(util["while_queued"]),
        _percent(util["whole_run"]),
        _percent(run["stranded_pct"]),
        *(_time(each) for each in (done["mean"], done["p99"], wait["p50"], wait["p99"])),
        str(run["preemptions"]),
        "-" if run["jain"] is None else f"{run['jain']:.3f}",
    ]


def _show_waits(title: str, groups: Json, headers: bool, wide: bool) -> None:
    columns = (
        Column(title),
        Column("JOBS", right=True),
        *(Column(f"WAIT {name.upper()}", right=True) for name in QUANTILES),
    )
    rows = [
        [name, str(times["n"]), *(_time(times[each]) for each in QUANTILES)]
        for name, times in groups.items()
    ]
    print_table(columns, rows, headers, wide)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}%"


def _time(seconds: float | None) -> str:
    return "-" if seconds is None else show_duration(seconds)
