"""`python -m libs.embedded up|down|clean`: the verbs without the `muster` command."""

import argparse
import sys
from pathlib import Path

from libs.common.errors import MusterError
from libs.embedded.commands import clean, down, up
from libs.embedded.shape import REPLICATED, Options

VERBS = {"up": up, "down": down, "clean": clean}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m libs.embedded")
    parser.add_argument("verb", choices=VERBS)
    parser.add_argument("--state", type=Path, default=Path(".muster"))
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--gpus", type=int)
    parser.add_argument("--model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--gateways", type=int)
    for name in REPLICATED:
        parser.add_argument(f"--{name}", type=int)
    parser.add_argument("--listen")
    parser.add_argument("--local", action="store_true", default=None)
    parser.add_argument("--force", action="store_true")
    parser.add_argument("--background", dest="foreground", action="store_false")
    parser.add_argument("--yes", action="store_true")
    found = vars(parser.parse_args(arguments))
    verb = VERBS[found.pop("verb")]
    try:
        return verb(Options(**found))
    except MusterError as error:
        print(f"muster: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
