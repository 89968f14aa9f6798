"""The cluster on one screen, for `muster top`, `watch` and `status`."""

import sys
from collections import Counter
from datetime import datetime
from typing import Final

from libs.cli.flags.durations import age, between
from libs.cli.gateway import Json, ask, ask_all
from libs.cli.jobs import Job, command_line, gpus_requested, places, utc_now
from libs.cli.terminal.output import coloured, terminal_width, tinted
from libs.cli.terminal.table import (
    BOLD,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Column,
    clean,
    cut,
    natural,
    paint,
    render,
    state_colour,
)
from libs.client.profile import Profile, read_profile
from libs.common.errors import MusterError

JOBS_MAX: Final = 200
PLAIN_WIDTH: Final = 100
BAR_WIDTH: Final = 24
GPU_MARKS: Final = {
    "AVAILABLE": ("·", DIM), "ALLOCATED": ("▒", YELLOW), "IN_USE": ("█", GREEN),
    "DEGRADED": ("d", YELLOW),
    "RESETTING": ("r", YELLOW), "OFFLINE": ("x", RED), "MAINTENANCE": ("m", YELLOW),
    "ERROR": ("!", RED),
}  # fmt: skip
PART: Final = ("▄", GREEN)
WHOLE: Final = 100

JOB_COLUMNS: Final = (
    Column("ID"), Column("NAME", flexible=True), Column("STATE", colour_of=state_colour),
    Column("GPUS", right=True),
    Column("USER", flexible=True), Column("RAN", right=True), Column("NODES", flexible=True),
    Column("COMMAND", flexible=True),
)  # fmt: skip


def watch(every_s: float) -> None:
    """Redraw the overview until q or Ctrl-C; without a terminal print it once."""
    profile = read_profile()
    latest = read(profile)
    if not (sys.stdout.isatty() and sys.stdin.isatty()):
        show(latest)
        return
    from libs.cli.terminal.screen import redraw

    def picture(width: int, height: int) -> list[str]:
        nonlocal latest
        try:
            latest = read(profile)
        except MusterError as error:
            return [*_drawn(latest, width, height - 1), paint(cut(f"muster: {error}", width), RED)]
        return _drawn(latest, width, height)

    redraw(picture, every_s)


def show(seen: Json) -> None:
    """Print the overview once."""
    print("\n".join(_drawn(seen, terminal_width() or PLAIN_WIDTH, 0)))


def read(profile: Profile) -> Json:
    return {
        "cluster": ask(profile, "GET", "/v1/cluster"),
        "nodes": ask_all(profile, "/v1/nodes", "nodes"),
        "gpus": ask_all(profile, "/v1/gpus", "gpus"),
        "jobs": ask(profile, "GET", "/v1/jobs", {"limit": JOBS_MAX})["jobs"],
    }


def _drawn(seen: Json, width: int, height: int) -> list[str]:
    """Return the lines of the overview; a `height` of 0 means no limit.

    Below the head, nodes get at most half of the lines, and jobs the rest.
    """
    now = utc_now()
    head = _head(seen, width)
    nodes, jobs = _nodes(seen, width), _jobs(seen["jobs"], width, now)
    if height:
        room = max(4, height - len(head) - 2)
        nodes = _first(nodes, max(room // 2, room - len(jobs)), "nodes")
        jobs = _first(jobs, room - len(nodes), "jobs")
    return [*head, "", *nodes, "", *jobs]


def _first(lines: list[str], room: int, what: str) -> list[str]:
    if len(lines) <= room:
        return lines
    return [
        *lines[: max(1, room - 1)],
        tinted(f"... and {len(lines) - max(1, room - 1)} more {what}", DIM),
    ]


def _head(seen: Json, width: int) -> list[str]:
    cluster = seen["cluster"]
    total, held = int(cluster.get("gpu_share_total") or 0), int(cluster.get("gpu_share_held") or 0)
    part = held / total if total else 0.0
    states = Counter(str(node["state"]) for node in seen["nodes"])
    jobs = cluster.get("jobs") or {}
    live = ", ".join(
        f"{jobs[state]} {state}"
        for state in ("running", "queued", "pending", "placed", "releasing")
        if jobs.get(state)
    )
    first = (
        f"{cluster.get('cluster_id') or 'cluster'}  log {cluster.get('seq')}  leader "
        f"{cluster.get('leader') or 'none'}"
    )
    return [
        tinted(cut(clean(first), width), BOLD),
        f"GPUs   {_bar(part)} {held / WHOLE:g} of {total // WHOLE} held ({part:.0%})",
        cut(
            f"Nodes  {', '.join(f'{count} {state}' for state, count in states.items()) or 'none'}",
            width,
        ),
        cut(f"Jobs   {live or 'none live'}", width),
    ]


def _bar(part: float) -> str:
    full = round(part * BAR_WIDTH)
    return tinted("█" * full, GREEN) + tinted("░" * (BAR_WIDTH - full), DIM)


def _nodes(seen: Json, width: int) -> list[str]:
    by_node: dict[str, list[Json]] = {}
    for gpu in seen["gpus"]:
        by_node.setdefault(str(gpu["node_id"]), []).append(gpu)
    name_width = max((len(str(node["id"])) for node in seen["nodes"]), default=4)
    lines = [tinted(f"{'NODE':<{name_width}}  {'STATE':<11}  GPUS", BOLD)]
    for node in sorted(seen["nodes"], key=lambda node: natural(str(node["id"]))):
        state = str(node["state"])
        marks = "".join(
            _mark(gpu)
            for gpu in sorted(by_node.get(str(node["id"]), []), key=lambda gpu: int(gpu["index"]))
        )
        free = f"  {node.get('gpus_free', 0)} free" + (
            f", {node['reason']}" if node.get("reason") else ""
        )
        room = width - name_width - len(f"  {'':<11}  ") - len(by_node.get(str(node["id"]), []))
        lines.append(
            f"{node['id']:<{name_width}}  {tinted(f'{state:<11}', state_colour(state))}  "
            f"{marks}{cut(clean(free), max(1, room))}"
        )
    return lines


def _mark(gpu: Json) -> str:
    mark, colour = GPU_MARKS.get(str(gpu.get("state")), ("?", ""))
    if gpu.get("state") in ("IN_USE", "ALLOCATED") and int(gpu.get("held_share") or 0) < WHOLE:
        mark, colour = PART
    return tinted(mark, colour)


def _jobs(jobs: list[Job], width: int, now: datetime) -> list[str]:
    rows = [_job(job, now) for job in jobs]
    return render(JOB_COLUMNS, rows, width=width, colour=coloured())


def _job(job: Job, now: datetime) -> list[str]:
    ran = between(job.get("started_at"), job.get("ended_at"), now)
    return [
        str(job["id"]),
        str(job.get("name") or "-"),
        str(job["state"]),
        gpus_requested(job),
        str(job.get("user") or "-"),
        ran if job.get("started_at") else age(job.get("submitted_at"), now),
        places(job.get("node_ids")),
        command_line(job),
    ]
