"""`python -m libs.deploy`: the command of `scripts/cluster_deploy.py`."""

import argparse
import sys
from pathlib import Path

from libs.common.errors import MusterError, Refused
from libs.deploy import plan as p
from libs.deploy.rollout import Rollout


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        return _run(options)
    except MusterError as error:
        print(f"cluster_deploy: {error}", file=sys.stderr)
        return error.exit_code


def _run(options: argparse.Namespace) -> int:
    if options.init is not None:
        return _init(options.init)
    if options.config is None:
        raise Refused("--config FILE is missing; --init FILE writes an example")
    plan = p.load(options.config)
    rollout = Rollout(plan, lambda text: print(text, flush=True))
    if options.status:
        print("\n".join(rollout.status()))
    elif options.upgrade:
        rollout.upgrade(p.chosen(plan, options.nodes))
    else:
        rollout.deploy(p.chosen(plan, options.nodes))
    return 0


def _init(path: Path) -> int:
    try:
        with path.open("x") as file:
            file.write(p.EXAMPLE)
    except OSError as error:
        raise Refused(
            f"{path} cannot be written ({error.strerror}): choose another file"
        ) from error
    print(f"wrote {path}: edit it, then run with --config {path}")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "cluster_deploy", description="Install, upgrade and check a cluster over ssh."
    )
    does = parser.add_mutually_exclusive_group()
    does.add_argument("--init", type=Path, metavar="FILE", help="Write an example configuration.")
    parser.add_argument("--config", type=Path, metavar="FILE", help="Configuration to use.")
    parser.add_argument(
        "--nodes", default="all", metavar="NAMES", help="Nodes, separated by commas (default: all)."
    )
    does.add_argument(
        "--upgrade", action="store_true", help="Upgrade the head and the nodes, one by one."
    )
    does.add_argument("--status", action="store_true", help="Show each machine; change nothing.")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
