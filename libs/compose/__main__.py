"""`python -m libs.compose init [ROOT]`: fill the containers' volumes under ROOT; `... key`: print the administrator's API key."""

import json
import sys
from pathlib import Path
from typing import Final

from libs.cli.profile import profile_path
from libs.common.errors import MusterError, Refused
from libs.compose.provision import provision

VOLUMES: Final = "/volumes"


def init(root: str = VOLUMES) -> None:
    """The administrator's key is not said here: what a container says is kept."""
    made = provision(Path(root))
    print("keys, certificates and passwords are made" if made else "keys, certificates and passwords are there")
    print("the administrator's key: docker compose run --rm key")


def key() -> None:
    try:
        print(json.loads(profile_path().read_text())["key"])
    except (OSError, ValueError, KeyError) as error:
        raise Refused(f"there is no administrator's key at {profile_path()} ({error}): `docker compose up` makes it") from error


VERBS: Final = {"init": init, "key": key}


def main(arguments: list[str]) -> int:
    verb = VERBS.get(arguments[0]) if arguments else None
    if verb is None:
        print(f"usage: python -m libs.compose {'|'.join(VERBS)}", file=sys.stderr)
        return 2
    try:
        verb(*arguments[1:])
    except MusterError as error:
        print(f"muster: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
