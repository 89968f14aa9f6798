"""The command line of the packed program. The agent gives folders and bounds as variables."""

import argparse
import os
import sys
from pathlib import Path
from typing import Final, NoReturn

from libs.job.pulling.copies import Copies
from libs.job.pulling.download import Wanted, pull
from libs.job.pulling.errors import PullError
from libs.job.pulling.hub import Hub
from libs.job.pulling.listing import MAIN, check_repository, check_revision
from libs.job.pulling.peer import check_held, take

FOLDER: Final = "MUSTER_PULL_FOLDER"
USES: Final = "MUSTER_PULL_USES"
BYTES: Final = "MUSTER_PULL_BYTES"
HUB: Final = "MUSTER_HUB"
JOB: Final = "MUSTER_JOB_ID"
ATTEMPT: Final = "MUSTER_ATTEMPT"
TOKEN: Final = "HF_TOKEN"  # nosec B105
# Files of a copy: the tenant's group may replace them, and containers of other users read them.
UMASK: Final = 0o002
FAILED: Final = 1


def main() -> NoReturn:
    """Pull a repository, and exit with 0 when the whole copy is there."""
    os.umask(UMASK)
    try:
        _pull(_parser().parse_args())
    except PullError as error:
        _say(f"error: {error}")
        sys.exit(FAILED)
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        _say(f"error: the copy cannot be written: {error.strerror or error}{where}")
        sys.exit(FAILED)
    sys.exit(0)


def _pull(words: argparse.Namespace) -> None:
    if not os.environ.get(FOLDER):
        raise PullError(f"{FOLDER} is not set: start this program with muster model pull")
    copies = Copies(Path(os.environ[FOLDER]), Path(os.environ.get(USES, "")))
    wanted = Wanted(
        check_repository(words.repository),
        check_revision(words.revision),
        include=tuple(words.include),
        bound=int(os.environ.get(BYTES) or 0),
        job_id=os.environ.get(JOB, ""),
        attempt=os.environ.get(ATTEMPT, ""),
    )
    if words.held:
        check_held(copies, wanted, _say)
        return
    if words.from_peer:
        take(copies, wanted, words.from_peer, _say)
        return
    pull(Hub(words.hub or os.environ.get(HUB, ""), os.environ.get(TOKEN, "")), copies, wanted, _say)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("repository")
    parser.add_argument("--revision", default=MAIN)
    parser.add_argument("--include", action="append", default=[])
    parser.add_argument("--hub", default="")
    parser.add_argument("--held", action="store_true", help="only check that the copy is there")
    parser.add_argument("--from-peer", type=int, default=0, metavar="BYTES")
    return parser


def _say(text: str) -> None:
    print(text, flush=True)
