"""The local profile: where this user's commands find the cluster. Written at each start, mode 0600, the only place
that holds the API key in clear. `libs/cli/profile.py` reads it.
"""

import json
from pathlib import Path

from libs.cli.profile import profile_path
from libs.embedded import identity, permissions
from libs.embedded.shape import Shape


def known_key() -> str:
    """The key of an earlier profile, whoever wrote it; empty when there is none to read."""
    try:
        found = json.loads(profile_path().read_text())
    except (OSError, ValueError):
        return ""
    key = found.get("key") if isinstance(found, dict) else None
    return key if isinstance(key, str) else ""


def write(state: Path, shape: Shape, key: str) -> Path:
    """Raises OSError when the configuration directory cannot be written."""
    path = profile_path()
    profile = {
        "gateway": shape.gateway,
        "key": key,
        "state": str(state.resolve()),
        "nats": shape.nats,
        "operator_seed": str(identity.seed_file(state / "keys", permissions.OPERATOR).resolve()),
    }
    identity.write_private(path, json.dumps(profile, indent=1))
    return path
