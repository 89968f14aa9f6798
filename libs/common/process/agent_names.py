"""The name by which an agent's control groups and memory folder differ from those of others."""

from hashlib import sha256
from pathlib import Path
from typing import Final

DIGITS: Final = 8


def name_on_machine(node_id: str, state: Path) -> str:
    """Return the name. Agents that share a machine differ by their state directory."""
    return f"{node_id}-{sha256(bytes(state.resolve())).hexdigest()[:DIGITS]}"
