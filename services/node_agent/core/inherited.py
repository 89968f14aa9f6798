"""The names of the variables that jobs inherit from the agent's environment. Pure."""

from typing import Final

INHERITED: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "USER", "SHELL", "TMPDIR")
