"""`python -m libs.compose VERB`: the commands of the docker compose cluster's own containers.

`init [ROOT]` fills the containers' volumes under ROOT. `key` prints the administrator's API key.
`reset-key [--only] [ROOT]` replaces a lost one. `server [STATE]` runs this container's nats-server.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from libs.client.profile import profile_path
from libs.common.errors import MusterError, Refused
from libs.compose import server
from libs.compose.provision import provision, reset_key

VOLUMES: Final = "/volumes"
ONLY: Final = "--only"


def init(root: str = VOLUMES) -> None:
    """Fill the volumes. Does not print the administrator's key, because Docker keeps the output."""
    is_new = provision(Path(root))
    print(
        "created keys, certificates and passwords"
        if is_new
        else "keys, certificates and passwords already exist"
    )
    print("to print the administrator's key: docker compose run --rm key")


def key() -> None:
    try:
        print(json.loads(profile_path().read_text())["key"])
    except (OSError, ValueError, KeyError) as error:
        raise Refused(
            f"there is no administrator's key at {profile_path()} ({error}): run `docker compose "
            "up`, which creates it"
        ) from error


def reset(*arguments: str) -> None:
    """Create a new administrator's key. The gateways accept it within seconds."""
    roots = [each for each in arguments if each != ONLY]
    reset_key(Path(roots[0] if roots else VOLUMES), ONLY in arguments)
    print(
        "created a new administrator's key"
        + ("; all other keys of this host are void" if ONLY in arguments else "")
    )
    print("to print it: docker compose run --rm key")


VERBS: Final[dict[str, Callable[..., None]]] = {
    "init": init,
    "key": key,
    "reset-key": reset,
    "server": server.main,
}


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
