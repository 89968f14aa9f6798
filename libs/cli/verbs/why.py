"""`muster why`."""

import click

from libs.cli.flags.durations import show_duration
from libs.cli.gateway import Json, ask, job_path
from libs.cli.profile import read_profile
from libs.cli.terminal.output import formatted, print_table, print_value, tinted
from libs.cli.terminal.table import BOLD, Column, clean, state_colour

PLAIN = (Column("COUNT", right=True), Column("WHAT"), Column("DETAIL", flexible=True))
BLOCKERS = (PLAIN[0], Column("BUILD"), *PLAIN[1:])
BEFORE = (Column("BEFORE IT"), Column("WHY", flexible=True))


@click.command(short_help="Say why a job is where it is, now or at any past moment.")
@click.argument("ref", metavar="JOB")
@click.option(
    "--at",
    type=click.IntRange(1),
    metavar="SEQ",
    help="At this number of the log (see: muster log).",
)
@formatted
def command(ref: str, at: int | None, form: str) -> None:
    """Say why a job is where it is, now or at any past moment.

    \b
    muster why train
    muster why train --at 1042
    """
    answer = ask(read_profile(), "GET", job_path(ref, "why"), {"at": at})
    if not print_value(answer, form):
        show(answer)


def show(answer: Json) -> None:
    state = str(answer.get("state", ""))
    said = clean(str(answer.get("answer", "")))
    print(said if state in said else f"{tinted(state, state_colour(state))}: {said}")
    print_proof(answer)


def print_proof(answer: Json) -> None:
    """What stands in the way, who goes first, when it may start by itself, and what would start it
    now.
    """
    blockers = answer.get("blockers") or []
    if blockers:
        columns = BLOCKERS if any(each.get("build") for each in blockers) else PLAIN
        print()
        print_table(
            columns,
            [[str(each.get(column.title.lower(), "")) for column in columns] for each in blockers],
        )
    before = answer.get("before") or []
    if before:
        print()
        print_table(BEFORE, [[str(each["job_id"]), str(each["why"])] for each in before])
    _say("Starts", _when(answer.get("estimate") or {}))
    _say("Remedy", str(answer.get("remedy") or ""))
    for other in (answer.get("changes") or [])[1:]:
        print(f"{'':8}or {clean(str(other))}")


def _say(title: str, text: str) -> None:
    if text:
        print(f"\n{tinted(f'{title}:', BOLD)} {clean(text)}")


def _when(estimate: Json) -> str:
    if not estimate:
        return ""
    in_s = estimate["in_s"]
    basis = str(estimate["basis"])
    return (
        basis.replace("none: ", "no estimate: ", 1)
        if in_s is None
        else f"in {show_duration(in_s)}, {basis}"
    )
