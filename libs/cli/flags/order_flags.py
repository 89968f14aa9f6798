"""When a job may run, as flags of `muster run` and `muster submit`; part of `jobflags.py`.

The gateway reads the values.
"""

import click

QUEUE = click.option(
    "--queue", metavar="NAME", help="The queue that it waits in (muster queue list)."
)
FLAGS = (
    QUEUE,
    click.option(
        "--deadline",
        metavar="TIME",
        help="When it should have ended: 2026-12-24T18:00:00Z (queues of policy deadline).",
    ),
    click.option("--estimate", metavar="TIME", help="How long it will take, as you think: 2h."),
    click.option(
        "--after",
        multiple=True,
        metavar="KIND:JOB",
        help="Begin when that job has ended: afterok:JOB (well), afterany:JOB.",
    ),
    click.option("--singleton", is_flag=True, help="Only one job of this name and user at a time."),
    click.option(
        "--hold", is_flag=True, help="Do not place it until it is released (muster release)."
    ),
    click.option(
        "--reservation",
        metavar="NAME",
        help="Run where and while this reservation is (muster reservations).",
    ),
)
