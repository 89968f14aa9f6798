"""Where the gateway is and which key to show it: the profile that `muster up` or `muster login`
writes, and what overrides it.

MUSTER_URL and MUSTER_API_KEY go before the file ($MUSTER_PROFILE, else muster/profile.json in the
configuration directory). A missing file is no fault: the default address is tried. Tests:
tests/unit/test_cli_profile.py.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.common.errors import Refused

AWAY_S: Final = 120.0
DEFAULT_URL: Final = "http://127.0.0.1:8080"


class Profile(NamedTuple):
    """`source` says where the address came from, for the message that nothing answers there.

    `user` is in whose name things are asked; empty: the key's own.
    """

    url: str
    key: str
    source: str
    user: str
    state: str
    nats: str = ""


def away_s(environ: Mapping[str, str] = os.environ) -> float:
    """How long a gateway that is gone is looked for.

    Raises Refused for what is no number of seconds.
    """
    text = environ.get("MUSTER_AWAY_S", "")
    if text and not text.isdigit():
        raise Refused(f"MUSTER_AWAY_S={text[:32]!r} is no whole number of seconds")
    return float(text) if text else AWAY_S


def profile_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The profile's file, whether it is there or not."""
    if named := environ.get("MUSTER_PROFILE"):
        return Path(named)
    return (
        Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "muster" / "profile.json"
    )


def kept_of(path: Path) -> Profile | None:
    """What the file itself says, whatever the environment; None when there is none.

    Raises Refused when it cannot be used.
    """
    stored = _stored(path)
    texts = {name: _text(stored, name) for name in ("gateway", "key", "user", "state")}
    return (
        Profile(texts["gateway"], texts["key"], str(path), texts["user"], texts["state"])
        if stored
        else None
    )


def read_profile(environ: Mapping[str, str] = os.environ) -> Profile:
    """What holds for this process. Raises Refused when the file is there and cannot be used."""
    path = profile_path(environ)
    stored = _stored(path)
    url, source = _address(environ, path, stored)
    if key := environ.get("MUSTER_API_KEY"):
        user = environ.get("MUSTER_USER", "")  # whoever the key stands for, unless another is named
    else:
        key, user = _text(stored, "key"), _text(stored, "user") or local_user(environ)
    return Profile(
        url.rstrip("/"), key, source, user, _text(stored, "state"), _text(stored, "nats")
    )


def local_user(environ: Mapping[str, str] = os.environ) -> str:
    """The name that jobs are submitted under: the account's, from the environment first, so that it
    can be set.
    """
    for name in ("MUSTER_USER", "LOGNAME", "USER"):
        if value := environ.get(name):
            return value
    import pwd  # only where the environment is bare

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _address(environ: Mapping[str, str], path: Path, stored: Mapping[str, Any]) -> tuple[str, str]:
    if url := environ.get("MUSTER_URL"):
        return url, "MUSTER_URL"
    if url := _text(stored, "gateway"):
        return url, str(path)
    return DEFAULT_URL, "the default address"


def _stored(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Refused(
            f"cannot read the profile {path}: {error}; write it again with: muster up"
        ) from error
    if not isinstance(value, dict):
        raise Refused(f"the profile {path} must hold a JSON object; write it again with: muster up")
    return value


def _text(stored: Mapping[str, Any], name: str) -> str:
    value = stored.get(name)
    return value if isinstance(value, str) else ""
