"""The flags about preemption; part of `jobflags.py`. The gateway checks the values."""

import click

FLAGS = (
    click.option(
        "--preemptible",
        is_flag=True,
        help="Allow jobs of higher priority to preempt this one. It is queued again.",
    ),
    click.option(
        "--checkpoint-grace",
        metavar="DURATION",
        help="Time to save work before a preemption stops the job (default: 0).",
    ),
    click.option(
        "--checkpoint-signal",
        metavar="SIGNAL",
        help="Signal that asks the job to save its work, for example USR1 (default: TERM).",
    ),
    click.option(
        "--min-run",
        metavar="DURATION",
        help="Time that the job runs before it may be preempted, for example 10m.",
    ),
)
