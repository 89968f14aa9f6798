"""The names that a completion script asks for: jobs, nodes and models, as the gateway knows them.

A TAB must neither wait nor print an error. So the process ends after ENDS_S at the latest, also
inside a look-up of a host name, and a gateway that does not answer gives no names. Tests:
tests/integration/test_cli_completion.py.
"""

import re
import signal
from collections.abc import Iterator
from typing import Any, Final

from libs.cli.gateway import ask
from libs.client.profile import Profile, read_profile
from libs.common.errors import MusterError

# With the start of the interpreter, a TAB takes at most one second.
ENDS_S: Final = 0.8
NAMES_MAX: Final = 500
# bash expands the words that it completes with, so no other letter may reach it.
SAFE: Final = re.compile(r"[A-Za-z0-9._@+-]{1,200}")


def print_names(kinds: str) -> None:
    """Print the names of these kinds (`jobs`, `nodes`, `models`), one a line; none on any error."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, ENDS_S)
    try:
        profile = read_profile()
        found = [name for kind in kinds.split(",") for name in _names(profile, kind)]
    except (MusterError, OSError, LookupError):
        return
    for name in list(dict.fromkeys(found))[:NAMES_MAX]:
        if SAFE.fullmatch(name):
            print(name)


def _names(profile: Profile, kind: str) -> Iterator[str]:
    if kind == "jobs":
        for job in _rows(profile, "/v1/jobs", "jobs", user=profile.user):
            yield str(job["id"])
            yield str(job["name"])
    elif kind == "nodes":
        for node in _rows(profile, "/v1/nodes", "nodes"):
            yield str(node["id"])
    elif kind == "models":
        for model in _rows(profile, "/v1/deployments", "deployments"):
            yield str(model["name"])


def _rows(profile: Profile, path: str, name: str, **query: str) -> list[dict[str, Any]]:
    found = ask(profile, "GET", path, {**query, "limit": NAMES_MAX}, answer_s=ENDS_S)
    rows: list[dict[str, Any]] = found[name]
    return rows
