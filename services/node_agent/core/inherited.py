"""The variables of the agent's own environment that jobs inherit."""

from typing import Final

INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "SHELL", "TMPDIR")
