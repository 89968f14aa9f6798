"""What a job says of being preempted, as flags of `muster run` and `muster submit`; part of
`jobflags.py`.

The gateway reads the values.
"""

import click

FLAGS = (
    click.option(
        "--preemptible",
        is_flag=True,
        help="It may make room for jobs of higher priority, and waits again then.",
    ),
    click.option(
        "--checkpoint-grace",
        metavar="TIME",
        help="How long it may save its work before it is stopped for that (default 0).",
    ),
    click.option(
        "--checkpoint-signal", metavar="SIGNAL", help="What it hears then: USR1 (default TERM)."
    ),
    click.option(
        "--min-run", metavar="TIME", help="How long it runs before it may be preempted: 10m."
    ),
)
