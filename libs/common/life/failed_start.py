"""Reasons why the process of a member never began, in words for users.

Pure. The node's supervisor records the reason and a detail; users see the same sentence in `muster
why`, `muster describe` and the dashboard. Tests: tests/unit/test_failed_start.py.
"""

from typing import Final

from libs.common import reasons

# The supervisor's detail goes on with the directories that it looked into.
_SEARCHED: Final = " in PATH="


def words(reason: str, detail: str, node: str, exit_code: int | None) -> str:
    """Return the words, for example `the command x was not found on node-3 (exit code 127)`.

    Returns an empty text for a member whose process began.
    """
    if reason != reasons.EXEC_FAILED or not detail:
        return ""
    code = "" if exit_code is None else f" (exit code {exit_code})"
    return f"{detail.partition(_SEARCHED)[0]} on {node}{code}"
