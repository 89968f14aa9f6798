"""The profile: the gateway's address and the key, as `muster up` or `muster login` wrote them.

MUSTER_URL and MUSTER_API_KEY override the file ($MUSTER_PROFILE, else muster/profile.json in the
configuration directory). Without a file the default address applies. The key of a profile goes only
to the address of that profile. Tests: tests/unit/test_client_profile.py.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from libs.common.errors import Refused

AWAY_S: Final = 120.0
DEFAULT_URL: Final = "http://127.0.0.1:8080"
# The source of the address if neither MUSTER_URL nor a profile names one.
DEFAULT_SOURCE: Final = "the default address"
AGAIN: Final = (
    "write it again with muster login URL, or with muster up for a cluster on this machine"
)


class Profile(NamedTuple):
    """The gateway's address and the key in use.

    `source` names where the address came from, for error messages. `user` is the user of requests;
    if it is empty, the gateway takes the key's own. `state` is the state directory of an embedded
    cluster, `nats` the address of its log.
    """

    url: str
    key: str
    source: str
    user: str
    state: str
    nats: str = ""


def away_s(environ: Mapping[str, str] = os.environ) -> float:
    """Return how long commands retry a gateway that does not answer (MUSTER_AWAY_S).

    Raises Refused if it is not a whole number of seconds.
    """
    text = environ.get("MUSTER_AWAY_S", "")
    if text and not text.isdigit():
        raise Refused(f"MUSTER_AWAY_S={text[:32]!r}: use a whole number of seconds")
    return float(text) if text else AWAY_S


def profile_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the profile, which may not exist."""
    if named := environ.get("MUSTER_PROFILE"):
        return Path(named)
    return (
        Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "muster" / "profile.json"
    )


def kept_of(path: Path) -> Profile | None:
    """Return the content of a profile file without overrides, or None without a file.

    Raises Refused if the file is not valid.
    """
    stored = _stored(path)
    texts = {name: _text(stored, name) for name in ("gateway", "key", "user", "state")}
    return (
        Profile(
            url=texts["gateway"],
            key=texts["key"],
            source=str(path),
            user=texts["user"],
            state=texts["state"],
        )
        if stored
        else None
    )


def read_profile(environ: Mapping[str, str] = os.environ) -> Profile:
    """Return the profile with its overrides. Raises Refused if the file is not valid."""
    path = profile_path(environ)
    stored = _stored(path)
    url, source = _address(environ, path, stored)
    if key := environ.get("MUSTER_API_KEY"):
        user = environ.get("MUSTER_USER", "")  # empty: the key's own user
    elif "key" in stored and url.rstrip("/") != _text(stored, "gateway").rstrip("/"):
        key, user = "", ""  # the address is another one than the key's
    else:
        key, user = _text(stored, "key"), _text(stored, "user") or local_user(environ)
    return Profile(
        url=url.rstrip("/"),
        key=key,
        source=source,
        user=user,
        state=_text(stored, "state"),
        nats=_text(stored, "nats"),
    )


def local_user(environ: Mapping[str, str] = os.environ) -> str:
    """Return the user name for jobs: MUSTER_USER, else the account's name."""
    for name in ("MUSTER_USER", "LOGNAME", "USER"):
        if value := environ.get(name):
            return value
    import pwd  # rarely needed

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _address(environ: Mapping[str, str], path: Path, stored: Mapping[str, Any]) -> tuple[str, str]:
    if url := environ.get("MUSTER_URL"):
        return url, "MUSTER_URL"
    if url := _text(stored, "gateway"):
        return url, str(path)
    return DEFAULT_URL, DEFAULT_SOURCE


def _stored(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Refused(f"cannot read the profile {path}: {error}; {AGAIN}") from error
    if not isinstance(value, dict):
        raise Refused(f"the profile {path} must hold a JSON object; {AGAIN}")
    return value


def _text(stored: Mapping[str, Any], name: str) -> str:
    value = stored.get(name)
    return value if isinstance(value, str) else ""
