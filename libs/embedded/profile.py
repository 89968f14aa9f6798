"""The local profile, where this user's commands find the cluster's address and API key.

Each start writes it, with mode 0600. Only this file holds the API key in clear.
`libs/client/profile.py` reads it. It never replaces the profile that `muster login` wrote.
"""

import json
from pathlib import Path

from libs.client.profile import Profile, kept_of, profile_path
from libs.common.errors import Refused
from libs.embedded import identity, permissions
from libs.embedded.shape import Shape


def path_of(state: Path) -> Path:
    """Return the user's profile, or a file in the state directory if the profile is a login."""
    own = profile_path()
    return state.resolve() / "profile.json" if is_login(own) else own


def is_login(path: Path) -> bool:
    """Return whether `muster login` wrote the profile, and not a cluster of this machine."""
    kept = _kept(path)
    return kept is not None and bool(kept.url) and not kept.state


def known_key(state: Path) -> str:
    """Return the API key of an earlier profile; empty if there is none."""
    kept = _kept(path_of(state))
    return kept.key if kept is not None else ""


def kept_state(state: Path) -> Path | None:
    """Return the state directory that this cluster's profile names; None if it names none."""
    kept = _kept(path_of(state))
    return Path(kept.state) if kept is not None and kept.state else None


def _kept(path: Path) -> Profile | None:
    """Read a profile. Return None if it cannot be read: the next start replaces it."""
    try:
        return kept_of(path)
    except Refused:
        return None


def write(state: Path, shape: Shape, key: str) -> Path:
    """Write the profile and return its path. Raises OSError if it cannot be written."""
    path = path_of(state)
    profile = {
        "gateway": shape.gateway,
        "key": key,
        "state": str(state.resolve()),
        "nats": shape.nats,
        "operator_seed": str(identity.seed_file(state / "keys", permissions.OPERATOR).resolve()),
    }
    identity.write_private(path, json.dumps(profile, indent=1))
    return path
