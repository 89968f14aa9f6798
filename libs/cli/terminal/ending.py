"""The line about a job that did not end by a plain exit, with the reason from its node.

A command that exits by itself gets no line, whatever its exit code, as in a shell.
"""

import signal
from typing import Any, Final

from libs.cli.gateway import Json, ask, job_path
from libs.client.profile import Profile
from libs.common.errors import MusterError

PLAIN: Final = ("", "exited")
# Reasons that name no cause; the members of the job have more detail.
GENERAL: Final = (*PLAIN, "failed", "signalled", "cancelled")


def end_line(profile: Profile, job_id: str, last: Json) -> str:
    """Return the line for a job's last frame, or an empty text for a plain end."""
    state, reason = str(last.get("state")), str(last.get("reason") or "")
    if state == "completed":
        return ""
    if reason not in GENERAL:
        return f"job {job_id} {_ended_as(state)}: {reason}"
    if state != "failed" or last.get("exit_code") is None:
        return f"job {job_id} {_ended_as(state)}"
    return _member_line(profile, job_id)


def _member_line(profile: Profile, job_id: str) -> str:
    """Return the line about the first member without a plain end.

    If the gateway does not answer, return an empty text.
    """
    try:
        members: list[dict[str, Any]] = ask(profile, "GET", job_path(job_id)).get("members") or []
    except MusterError:
        return ""
    for member in sorted(members, key=lambda member: int(member.get("rank") or 0)):
        if member.get("signal"):
            return (
                f"job {job_id} was ended by {_name(int(member['signal']))} on "
                f"{member.get('node_id')}"
            )
        if member.get("reason") not in (*PLAIN, None):
            return (
                f"job {job_id} failed on {member.get('node_id')}: "
                f"{member.get('detail') or member.get('reason')}"
            )
    return ""


def _ended_as(state: str) -> str:
    return f"was {state}" if state in ("cancelled", "rejected") else state


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
