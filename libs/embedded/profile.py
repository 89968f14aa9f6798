"""The local profile: where this user's commands find the cluster.

Written at each start, mode 0600, the only place that holds the API key in clear.
`libs/cli/profile.py` reads it. What `muster login` has kept is never replaced by it.
"""

import json
from pathlib import Path

from libs.cli.profile import Profile, kept_of, profile_path
from libs.common.errors import Refused
from libs.embedded import identity, permissions
from libs.embedded.shape import Shape


def path_of(state: Path) -> Path:
    """The user's profile; beside the cluster's state when that holds a login, at this cluster or
    another.
    """
    own = profile_path()
    return state.resolve() / "profile.json" if is_login(own) else own


def is_login(path: Path) -> bool:
    """Whether `muster login` has written it: no cluster that this machine starts."""
    kept = _kept(path)
    return kept is not None and bool(kept.url) and not kept.state


def known_key(state: Path) -> str:
    """The key of an earlier profile, whoever wrote it; empty when there is none to read."""
    kept = _kept(path_of(state))
    return kept.key if kept is not None else ""


def _kept(path: Path) -> Profile | None:
    """One that cannot be read is written anew."""
    try:
        return kept_of(path)
    except Refused:
        return None


def write(state: Path, shape: Shape, key: str) -> Path:
    """Raises OSError when the directory cannot be written."""
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
