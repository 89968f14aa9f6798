"""Writes the configuration file of a nats-server, after the server itself has checked it.

The old file stays until `nats-server -t` has accepted the new one. A node with an invalid row is
left out, so it can neither keep other nodes from joining nor keep the key of a removed node valid.
Test: tests/attack/test_joining.py.
"""

import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from libs.common.errors import Refused
from libs.common.messages.admission import Admitted
from libs.embedded import nats_config
from libs.embedded.identity import write_private
from libs.embedded.nats_config import Server
from libs.embedded.permissions import Fleet

TEST_S: Final = 30.0
SAID_CHARACTERS_MAX: Final = 300


def write(
    binary: str,
    path: Path,
    server: Server,
    fleet: Fleet,
    public_keys: Mapping[str, str],
    found: Admitted,
) -> dict[str, str]:
    """Replace the file at `path`. Return the joined nodes that it leaves out, with the reason.

    Raises Refused if the server refuses the file even without any joined node; the old file then
    stays.
    """

    def text(nodes: dict[str, str]) -> str:
        return nats_config.config(
            server, fleet, public_keys, msgspec.structs.replace(found, nodes=nodes)
        )

    def tried(nodes: dict[str, str]) -> str:
        return fault(binary, path.parent, text(nodes))

    accepted, refused = nats_config.accepted(fleet, public_keys, found)
    nodes = accepted.nodes
    if tried(nodes):
        if why := tried({}):
            raise Refused(
                f"nats-server refuses the new {path} ({why}), so the old file stays: check "
                "this process's settings"
            )
        nodes, failed = _divided(nodes, tried)
        refused |= failed
    write_private(path, text(nodes))
    return refused


def fault(binary: str, folder: Path, text: str) -> str:
    """Return why the server refuses a file of this text; empty if it takes it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.NamedTemporaryFile(
        "w", dir=folder, prefix=".tried.", suffix=".conf"
    ) as file:  # of mode 0600
        file.write(text)
        file.flush()
        try:
            ended = subprocess.run(
                [binary, "-t", "-c", file.name],
                capture_output=True,
                text=True,
                timeout=TEST_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"`nats-server -t` did not end in {TEST_S:.0f} s"
    if not ended.returncode:
        return ""
    return (ended.stderr or ended.stdout).strip().replace(file.name, "the file")[
        :SAID_CHARACTERS_MAX
    ] or "no reason given"


def _divided(
    nodes: dict[str, str], tried: Callable[[dict[str, str]], str]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return the nodes with which the server takes the file, and the others with its reason."""
    why = tried(nodes)
    if not why:
        return nodes, {}
    if len(nodes) == 1:
        return {}, dict.fromkeys(nodes, why)
    rows = list(nodes.items())
    halves = [
        _divided(dict(half), tried) for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :])
    ]
    return halves[0][0] | halves[1][0], halves[0][1] | halves[1][1]
