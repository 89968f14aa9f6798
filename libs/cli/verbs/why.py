"""`muster why`."""

import click

from libs.cli.flags.durations import show_duration
from libs.cli.gateway import Json, ask, job_path
from libs.cli.terminal.output import formatted, print_table, print_value, tinted
from libs.cli.terminal.table import BOLD, Column, clean, state_colour
from libs.client.profile import read_profile

PLAIN = (Column("COUNT", right=True), Column("WHAT"), Column("DETAIL", flexible=True))
BLOCKERS = (PLAIN[0], Column("BUILD"), *PLAIN[1:])
BEFORE = (Column("BEFORE IT"), Column("WHY", flexible=True))


@click.command(short_help="Explain the state of a job, now or at a past moment.")
@click.argument("ref", metavar="JOB")
@click.option(
    "--at",
    type=click.IntRange(1),
    metavar="SEQ",
    help="Explain the state at this sequence number of the log (see muster log).",
)
@formatted
def command(ref: str, at: int | None, form: str) -> None:
    """Explain the state of a job, now or at a past moment.

    \b
    muster why train
    muster why train --at 1042
    """
    answer = ask(read_profile(), "GET", job_path(ref, "why"), {"at": at})
    if not print_value(answer, form):
        show(answer)


def show(answer: Json) -> None:
    state = str(answer.get("state", ""))
    text = clean(str(answer.get("answer", "")))
    print(text if state in text else f"{tinted(state, state_colour(state))}: {text}")
    print_proof(answer)


def print_proof(answer: Json) -> None:
    """Print the blockers, the jobs before it, the estimated start, and the remedies."""
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
    _print_titled("Starts", _estimate_text(answer.get("estimate") or {}))
    _print_titled("Remedy", str(answer.get("remedy") or ""))
    for other in (answer.get("changes") or [])[1:]:
        print(f"{'':8}or {clean(str(other))}")


def _print_titled(title: str, text: str) -> None:
    if text:
        print(f"\n{tinted(f'{title}:', BOLD)} {clean(text)}")


def _estimate_text(estimate: Json) -> str:
    if not estimate:
        return ""
    in_s = estimate["in_s"]
    basis = str(estimate["basis"])
    return (
        basis.replace("none: ", "no estimate: ", 1)
        if in_s is None
        else f"perhaps in {show_duration(in_s)}, {basis}"
    )
