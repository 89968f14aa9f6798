"""`muster simulate`: replay a trace through the scheduler in virtual time.

It runs services/scheduler/simulate as a process.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import click

from libs.cli.flags.durations import show_duration
from libs.cli.flags.numbers import Number
from libs.cli.terminal.output import listed, print_table, print_value
from libs.cli.terminal.table import Column
from libs.common.durations import parse_duration

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


@click.command(short_help="Replay a trace of jobs through the scheduler in virtual time.")
@click.option(
    "--trace",
    required=True,
    metavar="FILE",
    help=(
        "Trace in the format of openb, Philly or Muri, or a CSV with job_id, submit_s, gpus, "
        "duration_s."
    ),
)
@click.option(
    "--nodes",
    required=True,
    metavar="FILE|NxG",
    help="File with a list of nodes (openb format), or a size such as 64x8: 64 nodes with 8 GPUs.",
)
@click.option(
    "--policy",
    "--order",
    "order",
    default="fifo",
    show_default=True,
    metavar="POLICY",
    help=(
        "Policy of the queue: fifo, priority, fair_share, srsf, las or deadline. With --preempt: "
        "fifo, srtf, srsf or las."
    ),
)
@click.option("--compare", metavar="POLICY,...", help="Compare several policies in one table.")
@click.option(
    "--placement",
    "--place",
    "place",
    default="fragmentation",
    show_default=True,
    metavar="STRATEGY",
    help="Placement strategy.",
)
@click.option(
    "--backfill/--no-backfill",
    default=None,
    help="Let jobs start before the first one if that does not delay it (default: not with fifo).",
)
@click.option(
    "--limits",
    type=float,
    default=0.0,
    metavar="N",
    help="Give every job a time limit of N times its duration.",
)
@click.option(
    "--preempt",
    is_flag=True,
    help=(
        "Use the protocol of published simulations: sort all jobs and place them again on an empty "
        "cluster at each submission and each end."
    ),
)
@click.option(
    "--restart-overhead",
    metavar="DURATION",
    callback=_duration,
    help="With --preempt: time that a resumed job loses (default: 0).",
)
@click.option(
    "--until", metavar="DURATION", callback=_duration, help="Stop after this time of the trace."
)
@click.option(
    "--speed",
    metavar="FACTOR",
    type=Number(),
    default=1.0,
    show_default=True,
    help="Speed of arrivals; 2 submits the same jobs in half the time.",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    metavar="N",
    help="Shuffle the jobs over the trace's submit times with this seed (default: no shuffle).",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write utilisation.svg and completion.svg to this directory.",
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
    """Replay a trace of jobs through the scheduler in virtual time.

    No cluster is needed. If a FILE does not exist here, the command looks in the folder
    MUSTER_TRACES.

    \b
    muster simulate --trace jobs.csv --nodes 8x8
    muster simulate --trace philly/jobs.csv --nodes 64x8 --compare fifo,priority --plots out
    muster simulate --trace muri/trace1_jobs.csv --nodes 8x8 --preempt \\
        --restart-overhead 30s --compare fifo,srsf,las
    """
    if preempt and backfill is not None:
        raise click.UsageError("--preempt cannot be combined with --backfill: remove one")
    if restart_overhead and not preempt:
        raise click.UsageError("--restart-overhead needs --preempt")
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
    # -P: Python must not import a `services` package from the current directory.
    line = [sys.executable, "-P", "-m", "services.scheduler.simulate", json.dumps(ask)]
    done = subprocess.run(line, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        return done.returncode if done.returncode > 0 else 128 - done.returncode
    report = json.loads(done.stdout)
    if not print_value(report, form):
        _show(report, not no_headers, form == "wide")
    return 0


def _show(report: Json, headers: bool, wide: bool) -> None:
    """Print one line per order; for a single order also the waits by size and tenant."""
    runs = report["runs"]
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
