"""The flags about preemption; part of `jobflags.py`. The gateway checks the values."""

import click

FLAGS = (
    click.option(
        "--preemptible",
        is_flag=True,
        help=(
            "Allow the scheduler to stop this job when another job needs its GPUs. The job is "
            "queued again and starts later."
        ),
    ),
    click.option(
        "--checkpoint-grace",
        metavar="DURATION",
        help="Time that the job gets to save its work before it is preempted (default: 0).",
    ),
    click.option(
        "--checkpoint-signal",
        metavar="SIGNAL",
        help="Signal that asks the job to save its work, for example USR1 (default: TERM).",
    ),
    click.option(
        "--min-run",
        metavar="DURATION",
        help="Do not preempt the job before it has run for this time, for example 10m.",
    ),
)
