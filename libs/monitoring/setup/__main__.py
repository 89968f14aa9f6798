"""`python -m libs.monitoring.setup`: the command of `scripts/monitoring_setup.py`."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from libs.common.errors import MusterError, Refused
from libs.monitoring.setup import files
from libs.monitoring.setup.scrape import scrape_text
from libs.monitoring.setup.servers import Server, check_prometheus, write_board

TOKEN: Final = "GRAFANA_TOKEN"
EXAMPLES: Final = """examples:
  monitoring_setup.py scrape --gateway gateway:8080 --node gpu-1:9460
  monitoring_setup.py rules --into /etc/prometheus/rules
  monitoring_setup.py board --into /var/lib/grafana/dashboards
  GRAFANA_TOKEN=... monitoring_setup.py board --grafana https://grafana.example
  monitoring_setup.py check --prometheus http://127.0.0.1:9090

The page docs/monitoring.md explains the board and each alert."""


def main(arguments: list[str]) -> int:
    """Run the command and return its exit code: 1 if a check finds something missing."""
    options = _parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except MusterError as error:
        print(f"monitoring_setup: {error}", file=sys.stderr)
        return error.exit_code


def _scrape(options: argparse.Namespace) -> int:
    text = scrape_text(
        options.gateway, options.node, options.key_file, options.rules, tls=options.tls
    )
    print(text, end="")
    return 0


def _rules(options: argparse.Namespace) -> int:
    text = files.rules_text(options.page)
    print(f"{files.counted_rules(text)} alerts, {files.check_rules(text)}")
    print(files.install(options.into, files.RULES.name, text, options.dry_run))
    print("Prometheus reads them after SIGHUP, if rule_files names them.")
    return 0


def _board(options: argparse.Namespace) -> int:
    if options.into is not None:
        print(files.install_board(options.into, options.dry_run))
        print("Grafana reads it, if a provider of dashboards names the directory.")
        return 0
    token = os.environ.get(TOKEN, "")
    if not token:
        raise Refused(
            f"{TOKEN} is not set: give the token of a service account that may write dashboards "
            "in the environment"
        )
    print("\n".join(write_board(Server(options.grafana, token), options.folder, options.dry_run)))
    return 0


def _check(options: argparse.Namespace) -> int:
    rules = files.counted_rules(files.rules_text(""))
    well, faults = check_prometheus(Server(options.prometheus), rules)
    for line in well:
        print(f"ok       {line}")
    for line in faults:
        print(f"missing  {line}")
    return 1 if faults else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "monitoring_setup.py",
        description="Install the board and the alerts of a cluster into Grafana and Prometheus.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    _add_scrape(verbs)
    rules = verbs.add_parser("rules", help="Install the alerts as a file of Prometheus' rules.")
    rules.add_argument(
        "--into", type=Path, required=True, metavar="DIR", help="Directory of rules."
    )
    rules.add_argument(
        "--page",
        default="",
        metavar="URL",
        help="Address at which your people read docs/monitoring.md; runbook links begin with it.",
    )
    rules.add_argument(
        "--dry-run", action="store_true", help="Say what would change; write nothing."
    )
    rules.set_defaults(run=_rules)
    board = verbs.add_parser("board", help="Install the board: as a file, or over Grafana's API.")
    place = board.add_mutually_exclusive_group(required=True)
    place.add_argument(
        "--into", type=Path, metavar="DIR", help="Directory from which Grafana reads dashboards."
    )
    place.add_argument(
        "--grafana", metavar="URL", help=f"Address of Grafana. The token is read from {TOKEN}."
    )
    board.add_argument(
        "--folder", default="", metavar="UID", help="Grafana's folder (default: General)."
    )
    board.add_argument(
        "--dry-run", action="store_true", help="Say what would change; write nothing."
    )
    board.set_defaults(run=_board)
    check = verbs.add_parser("check", help="Check targets, alerts and metrics in Prometheus.")
    check.add_argument("--prometheus", required=True, metavar="URL", help="Address of Prometheus.")
    check.set_defaults(run=_check)
    return parser


def _add_scrape(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    scrape = verbs.add_parser("scrape", help="Print what Prometheus must scrape.")
    scrape.add_argument(
        "--gateway", action="append", default=[], metavar="HOST:PORT", help="A gateway; repeat."
    )
    scrape.add_argument(
        "--node", action="append", default=[], metavar="HOST:PORT", help="A node; repeat."
    )
    scrape.add_argument(
        "--key-file",
        default="",
        metavar="FILE",
        help="File with an operator's key, as Prometheus sees it; without it no tenants are shown.",
    )
    scrape.add_argument(
        "--rules", default="", metavar="PATTERN", help="Pattern of rule files to include."
    )
    scrape.add_argument("--tls", action="store_true", help="Scrape gateways over HTTPS.")
    scrape.set_defaults(run=_scrape)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
