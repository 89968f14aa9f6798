"""`muster describe`: show one job with its members and its history."""

from typing import Final

import click

from libs.cli.flags.durations import age, between, show_duration
from libs.cli.gateway import Json, ask, job_path
from libs.cli.jobs import command_line, elements_of, ends_in, gpus_requested, utc_now, why_of
from libs.cli.terminal import history
from libs.cli.terminal.output import formatted, print_table, print_value, tinted
from libs.cli.terminal.table import BOLD, Column, clean, state_colour
from libs.cli.use import use_text
from libs.client.profile import Profile, read_profile

MEMBERS: Final = (
    Column("RANK", right=True),
    Column("NODE"),
    Column("STATE", colour_of=state_colour),
    Column("EXIT", right=True),
    Column("GPUS", flexible=True),
    Column("REASON", flexible=True),
)
LABEL_WIDTH: Final = 11
PLACED: Final = "placed"

# The prefix of a runner's error; it exits with 125 (services/node_agent/runtimes/runner.py).
CONTAINER: Final = "the container "


@click.command(short_help="Show one job in detail, with its history.")
@click.argument("ref", metavar="JOB")
@formatted
def command(ref: str, form: str) -> None:
    """Show one job in detail, with its history.

    \b
    muster describe train
    muster describe j4f2a5lc6kq -o yaml
    """
    profile = read_profile()
    job = ask(profile, "GET", job_path(ref))
    facts = history.read_history(profile, str(job["id"]))
    if print_value({**job, "history": facts}, form):
        return
    _print_job({**job, "pulls": _pulls(profile, job)})
    if job.get("members"):
        print(f"\n{tinted('Members', BOLD)} of attempt {job.get('attempt')}")
        print_table(MEMBERS, [_member(member) for member in job["members"]], wide=form == "wide")
    print(f"\n{tinted('History', BOLD)}")
    print_table(history.COLUMNS, [history.row(fact) for fact in facts], wide=form == "wide")


def _print_job(job: Json) -> None:
    state = str(job["state"])
    doing = " - ".join(part for part in (state, why_of(job), _waits(job)) if part)
    for label, text in (
        ("Job", str(job["id"])),
        ("Name", job.get("name")),
        ("State", doing),
        ("Array", _array(job)),
        ("Exit code", job.get("exit_code")),
        ("User", " of tenant ".join(filter(None, (job.get("user"), job.get("tenant"))))),
        ("Command", command_line(job)),
        ("Directory", job.get("workdir")),
        ("Image", job.get("image")),
        ("Pull", job.get("pulls")),
        ("Upload", job.get("upload")),
        ("GPUs", f"{gpus_requested(job)}, priority {job.get('priority')}"),
        ("Labels", " ".join(f"{key}={value}" for key, value in (job.get("labels") or {}).items())),
        (
            "Attempt",
            (
                f"{job.get('attempt')} ({job.get('retries_used', 0)} of {job.get('retries', 0)} "
                "retries used)"
            ),
        ),
        ("Time", _times(job)),
        ("Stop asked", _stop(job)),
        ("Preempted", _preempted(job)),
        ("Grown", _count(job.get("grown"))),
        ("Checkpoint", _checkpoints(job)),
        ("GPU use", use_text(job["use"], _devices(job)) if job.get("use") else ""),
        ("Hint", "; ".join((job.get("use") or {}).get("hints") or ())),
        ("Idle", job.get("idle_warning")),
        ("GPU errors", "; ".join(job.get("gpu_errors") or ())),
        ("Refused", _refused(job)),
        ("Preflight", _preflight(job)),
        ("Port", job.get("port") or None),
        ("Trace", job.get("trace_id")),
    ):
        if text not in (None, ""):
            shown = clean(str(text))
            print(
                f"{label + ':':<{LABEL_WIDTH}} "
                f"{tinted(shown, state_colour(state)) if label == 'State' else shown}"
            )


def _pulls(profile: Profile, job: Json) -> str:
    """Return how far the nodes of a job that has not started are with its image."""
    if job["state"] != PLACED or not job.get("image"):
        return ""
    found = ask(profile, "GET", job_path(str(job["id"]), "pulls"))["pulls"]
    return "; ".join(f"{each['node_id']}: {each['progress']}" for each in found)


def _devices(job: Json) -> int:
    """Return how many GPUs the job got or requested on all its nodes."""
    nodes = max(int(job.get("nodes") or 1), len(job.get("node_ids") or ()))
    return int(job.get("gpus") or 0) * nodes


def _array(job: Json) -> str:
    if job.get("element_of"):
        return f"element of {job['element_of']}"
    return f"{job['array']['numbers']}: {elements_of(job)}" if job.get("array") else ""


def _waits(job: Json) -> str:
    return f"waits for {job['waits_for']}" if job.get("waits_for") else ""


def _times(job: Json) -> str:
    now = utc_now()
    parts = [f"submitted {age(job.get('submitted_at'), now)}"]
    if job.get("started_at"):
        parts.append(f"started {age(job['started_at'], now)}")
        parts.append(f"ran {between(job['started_at'], job.get('ended_at'), now)}")
    if job.get("ended_at"):
        parts.append(f"ended {age(job['ended_at'], now)}")
    if over := ends_in(job, now):
        parts.append(over)
    if job.get("time_limit_s"):
        parts.append(f"limit {show_duration(job['time_limit_s'])}")
    if job.get("hang_timeout_s"):
        parts.append(f"hang timeout {show_duration(job['hang_timeout_s'])}")
    return ", ".join(parts)


def _preempted(job: Json) -> str:
    times = _count(job.get("preemptions"))
    return f"{times}, last for {job.get('preempted_by')}" if times else ""


def _refused(job: Json) -> str:
    """Return how often nodes refused the job, which nodes, and the last reason."""
    times = _count(job.get("refusals"))
    nodes = ", ".join(job.get("excluded_nodes") or ())
    return f"{times}, lately by {nodes}: {job.get('refused_reason')}" if times else ""


def _preflight(job: Json) -> str:
    """Return what the last preflight of a gang found, and which nodes the job avoids."""
    last = job.get("preflight")
    if not last:
        return ""
    avoids = f", avoids {', '.join(last['excluded'])}" if last["excluded"] else ""
    detail = f": {last['detail']}" if last["detail"] else ""
    measured = f"{last['measured']} pairs measured of {', '.join(last['nodes'])}"
    return f"{last['outcome']} in attempt {last['attempt']}, {measured}{avoids}{detail}"


def _count(times: int | None) -> str:
    return f"{times} time{'s' if times > 1 else ''}" if times else ""


def _checkpoints(job: Json) -> str:
    return (
        f"{job['checkpoints']}, the last {age(job.get('checkpointed_at'), utc_now())}"
        if job.get("checkpoints")
        else ""
    )


def _stop(job: Json) -> str:
    return ", ".join(
        filter(
            None,
            (
                "cancel requested" if job.get("cancel_requested") else "",
                str(job.get("stop_reason") or ""),
            ),
        )
    )


def _end_text(member: Json) -> str:
    """Return how a member ended.

    A plain exit needs no text, because its code stands beside it. A failed container does.
    """
    reason, detail = str(member.get("reason") or ""), str(member.get("detail") or "")
    if reason == "exited":
        return detail if detail.startswith(CONTAINER) else ""
    return ": ".join(filter(None, (reason, detail)))


def _member(member: Json) -> list[str]:
    code, number = member.get("exit_code"), member.get("signal")
    gpus = [
        str(gpu.get("uuid", gpu)) if isinstance(gpu, dict) else str(gpu)
        for gpu in member.get("gpus") or ()
    ]
    return [
        str(member.get("rank")),
        str(member.get("node_id")),
        str(member.get("state")),
        f"signal {number}" if number else "-" if code is None else str(code),
        ", ".join(gpus) or "-",
        _end_text(member),
    ]
