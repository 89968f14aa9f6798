"""The flags that say when a job may run; part of `jobflags.py`. The gateway checks the values."""

import click

QUEUE = click.option(
    "--queue", metavar="NAME", help="Queue to submit to (list them with muster queue list)."
)
FLAGS = (
    QUEUE,
    click.option(
        "--deadline",
        metavar="TIME",
        help=(
            "Time by which the job should end, for example 2026-12-24T18:00:00Z. Queues with the "
            "policy deadline order by it."
        ),
    ),
    click.option(
        "--estimate",
        metavar="DURATION",
        help=(
            "Expected run time, for example 2h. Used for the order of some queues and to predict "
            "when jobs start. It does not end the job."
        ),
    ),
    click.option(
        "--after",
        multiple=True,
        metavar="KIND:JOB",
        help=(
            "Start after another job has ended: afterok:JOB (only if it completed) or afterany:JOB "
            "(repeatable)."
        ),
    ),
    click.option(
        "--singleton",
        is_flag=True,
        help="Start only when no other job with the same name and user is active.",
    ),
    click.option(
        "--hold", is_flag=True, help="Keep the job in the queue until muster release JOB."
    ),
    click.option(
        "--reservation",
        metavar="NAME",
        help=(
            "Run only on the nodes of this reservation. The job waits until the reservation begins."
        ),
    ),
)
