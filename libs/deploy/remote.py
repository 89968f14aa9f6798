"""Runs shell commands on a machine over ssh. Nothing is installed there for this.

A command is one text for the remote shell; `quoted` makes a word of it. Input goes through stdin,
so tokens are in no process list.
"""

import shlex
import subprocess
from collections.abc import Sequence
from typing import Final

from libs.common.errors import Refused, Unavailable

CONNECT_S: Final = 15
COMMAND_S: Final = 600.0
SAID_CHARACTERS_MAX: Final = 400
# ssh's own exit code: no connection.
NO_CONNECTION: Final = 255
OPTIONS: Final = ("-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}")


class Machine:
    """One machine by its name in the configuration and its ssh destination."""

    def __init__(self, name: str, destination: str, options: Sequence[str]) -> None:
        self.name = name
        self.line = ["ssh", *OPTIONS, *options, "--", destination]

    def run(self, command: str, data: bytes = b"") -> str:
        """Run a command and return its output.

        Raises Unavailable without a connection, Refused if the command fails.
        """
        code, out, said = self.tried(command, data)
        if code:
            raise Refused(
                f"{self.name}: `{command[:120]}` failed with {code}: {said[-SAID_CHARACTERS_MAX:]}"
            )
        return out

    def tried(self, command: str, data: bytes = b"") -> tuple[int, str, str]:
        """Run a command; return exit code, output and errors. Raises Unavailable."""
        try:
            done = subprocess.run(
                [*self.line, command],
                input=data,
                capture_output=True,
                timeout=COMMAND_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(
                f"{self.name}: `{command[:120]}` did not end in {COMMAND_S:.0f} s: check the "
                "machine, then repeat the command"
            ) from error
        except FileNotFoundError as error:
            raise Refused("there is no ssh on this machine: install an ssh client") from error
        said = done.stderr.decode(errors="replace").strip()
        if done.returncode == NO_CONNECTION:
            raise Unavailable(
                f"{self.name} is not reachable over ssh ({said[-SAID_CHARACTERS_MAX:]}): check the "
                "destination, the key (ssh_options) and the host's key in known_hosts"
            )
        return done.returncode, done.stdout.decode(errors="replace"), said


def quoted(word: object) -> str:
    return shlex.quote(str(word))
