"""How a job that did not end plainly is said: in one line, with what its node knows about it.

A command that ends by itself, with whatever exit code, says nothing here, as a shell says nothing
about it.
"""

import signal
from typing import Any, Final

from libs.cli.gateway import Json, ask, job_path
from libs.cli.profile import Profile
from libs.common.errors import MusterError

PLAIN: Final = ("", "exited")
# Outcomes that name no cause; the members know more.
GENERAL: Final = (*PLAIN, "failed", "signalled", "cancelled")


def end_line(profile: Profile, job_id: str, last: Json) -> str:
    """The line for a job's last frame; empty for a plain end."""
    state, reason = str(last.get("state")), str(last.get("reason") or "")
    if state == "completed":
        return ""
    if reason not in GENERAL:
        return f"job {job_id} {_was(state)}: {reason}"
    if state != "failed" or last.get("exit_code") is None:
        return f"job {job_id} {_was(state)}"
    return _of_members(profile, job_id)


def _of_members(profile: Profile, job_id: str) -> str:
    """The first member that did not end plainly; a gateway that has just gone away is no reason to
    say anything.
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


def _was(state: str) -> str:
    return f"was {state}" if state in ("cancelled", "rejected") else state


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
