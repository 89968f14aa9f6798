"""The commands over an archive: verify, export, migrate, and those of `backup/commands.py`.

Each is a process on the archive's own machine; `muster audit` starts it.

Exit codes: 0 the archive is unchanged; 1 not reachable, or the archive is behind the log; 2
refused; 3 a record was changed or is not valid. Results go to stdout, and one line for each error
to stderr.
"""

import argparse
import asyncio
import logging
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import BinaryIO, Final

from libs.common.durations import parse_duration
from libs.common.errors import MusterError, Refused, Unavailable
from libs.common.settings.configuration import read
from libs.common.settings.settings import Settings
from libs.common.transport import connection_nats, log_jetstream, signed_snapshots, snapshot_store
from libs.common.transport.log import Entry, Log
from libs.common.transport.objects_nats import NatsObjects
from services.audit.backup import commands as backup_commands
from services.audit.chain import heads
from services.audit.chain.verify import Report, held, render, verify
from services.audit.export.events import BEGINNING, Position, parse_position, source_of
from services.audit.export.export import FORMATS, SEQ_MAX, Span, lines
from services.audit.store.store import Store

# The command waits less long for the log than a service does.
CONNECT_S: Final = 3.0
CHANGED: Final = 3
SEQ_DIGITS: Final = len(str(SEQ_MAX))


def call(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    logging.basicConfig(
        handlers=[logging.NullHandler()]
    )  # what the client says of its attempts is no news beside our line
    options = _parser().parse_args(arguments)
    _say_why_snapshots_are_not_used(options.verb)
    try:
        code: int = options.run(read(), options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except MusterError as error:
        print(f"audit {options.verb}: {error}", file=sys.stderr)
        return error.exit_code


def _say_why_snapshots_are_not_used(verb: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(f"audit {verb}: %(message)s"))
    for each in (snapshot_store, signed_snapshots):
        each.logger.addHandler(handler)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m services.audit")
    verbs = parser.add_subparsers(dest="verb", required=True)
    verifier = verbs.add_parser("verify")
    verifier.add_argument("--head", default="")
    verifier.add_argument("--key", default="")
    verifier.set_defaults(
        run=lambda settings, options: asyncio.run(_verify(settings, options.head, options.key))
    )
    exporter = verbs.add_parser("export")
    for name in ("since", "until", "after", "output"):
        exporter.add_argument(f"--{name}", default="")
    exporter.add_argument("--format", choices=FORMATS, default=FORMATS[0])
    exporter.set_defaults(run=_export)
    migrator = verbs.add_parser("migrate")
    migrator.add_argument("--to", default="head")
    migrator.add_argument("--yes", action="store_true")
    migrator.set_defaults(run=_migrate)
    backup_commands.add_to(verbs)
    return parser


async def _verify(settings: Settings, head_file: str, key: str) -> int:
    """Check the archive's chain.

    With MUSTER_NKEY_SEED_FILE or an open server it is also compared with the log, and with a file
    of heads, with those heads.
    """
    if key and not head_file:
        raise Refused(
            "--key is given without --head: add --head FILE, the saved heads that the key signed"
        )
    kept, bad = _kept_heads(Path(head_file), key) if head_file else ({}, [])
    store = Store(settings.audit_database, read_only=True)
    store.head()  # raises at once if this is not an archive
    log, stream = await _stream(settings)
    report = await verify(store, stream, kept, log)
    for line in bad:
        print(line)
    print(render(report))
    return CHANGED if bad else _code(report)


def _code(report: Report) -> int:
    """Return the exit code of a report. An archive that is behind the log is not a changed one."""
    if any(finding.wrong != "behind" for finding in report.findings):
        return CHANGED
    return 1 if report.ended or report.findings else 0


async def _stream(settings: Settings) -> tuple[Log, AsyncIterator[list[Entry]]] | tuple[None, None]:
    try:
        client = await connection_nats.connect_as(settings, "audit-verify", within_s=CONNECT_S)
        log = log_jetstream.JetStreamLog(client)
        await log.bounds()
        snapshots = signed_snapshots.of(settings, NatsObjects(client))

        async def base() -> int:
            found = await snapshot_store.load(snapshots, snapshot_store.BASE_OBJECT)
            return found.seq if found is not None else 0

        return log, held(log, base)
    except MusterError as error:
        print(f"audit verify: the archive is not compared with the log: {error}", file=sys.stderr)
        return None, None


def _kept_heads(path: Path, key: str) -> tuple[dict[int, str], list[str]]:
    """Hash by sequence of the heads that count, and a line for each that does not.

    Raises Refused, Corrupt.
    """
    kept: dict[int, str] = {}
    bad: list[str] = []
    signers: dict[str, int] = {}
    for number, head in enumerate(_heads(path), start=1):
        why = heads.problem(head, key)
        if not why and kept.setdefault(head.sequence, head.hash) != head.hash:
            why = "another head of the same commit has another hash: two histories were signed"
        if why:
            bad.append(f"head {number} ({path}), sequence {head.sequence}: {why}")
        else:
            signers[head.key] = signers.get(head.key, 0) + 1
    if not kept and not bad:
        raise Refused(f"{path} contains no head: give a file with lines of `muster audit head`")
    for signer, count in signers.items():
        known = (
            ""
            if key
            else "; check that this is the audit's key: --key accepts only a key that you know"
        )
        print(f"audit verify: {count} heads signed by {signer}{known}", file=sys.stderr)
    return kept, bad


def _heads(path: Path) -> Iterator[heads.Head]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file):
                if number >= heads.HEADS_MAX:
                    raise Refused(
                        f"{path} holds over {heads.HEADS_MAX} heads: give fewer, the newest "
                        "say the most"
                    )
                if line.strip():
                    yield heads.decode(line)
    except OSError as error:
        raise Refused(f"the heads in {path} cannot be read ({error.strerror})") from error


def _export(settings: Settings, options: argparse.Namespace) -> int:
    span = _span(options.since, options.until, options.after, datetime.now(UTC))
    store = Store(settings.audit_database, read_only=True)
    store.head()
    try:
        with _output(options.output) as file:
            for piece in lines(store, span, source_of(settings.cluster_id), options.format):
                file.write(piece)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unavailable(
            f"writing to {options.output or 'the standard output'} failed ({error.strerror}): the "
            "export is not complete. Check the disk's space, then export into a new file"
        ) from error
    return 0


def _output(name: str) -> BinaryIO:
    """Open a new file, or stdout. An existing file is never overwritten."""
    if not name:
        return os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    try:
        return Path(name).open("xb")
    except OSError as error:
        raise Refused(
            f"--output {name}: {error.strerror}; go on behind an earlier export with --after "
            "ID into a new file"
        ) from error


def _span(since: str, until: str, after: str, now: datetime) -> Span:
    """Return the span of the options; whole numbers are sequence numbers, and both ends count.

    Raises Refused for an invalid sequence number, time or id.
    """
    behind, until_seq, since_ns, until_ns = parse_position(after), SEQ_MAX, 0, SEQ_MAX
    if since.isascii() and since.isdigit():
        first = _sequence(since)
        behind = max(behind, Position(first - 1) if first else BEGINNING)
    elif since:
        since_ns = _instant_ns("--since", since, now)
    if until.isascii() and until.isdigit():
        until_seq = _sequence(until)
    elif until:
        until_ns = _instant_ns("--until", until, now)
    return Span(behind, until_seq, since_ns, until_ns)


def _sequence(digits: str) -> int:
    """Return the sequence number, at most SEQ_MAX."""
    return min(int(digits), SEQ_MAX) if len(digits.lstrip("0")) <= SEQ_DIGITS else SEQ_MAX


def _instant_ns(name: str, text: str, now: datetime) -> int:
    """Return the time of an RFC 3339 text (UTC without a zone), or of a duration before now.

    A time that the archive cannot hold becomes the nearest one that it can hold.
    Raises Refused with the accepted forms.
    """
    try:
        try:
            moment = now - timedelta(seconds=parse_duration(text))
        except ValueError:
            moment = datetime.fromisoformat(text)
    except (ValueError, OverflowError) as error:
        expected = (
            "use a sequence number, RFC 3339 (2026-01-31T12:00:00Z) or a duration before now (12h)"
        )
        raise Refused(f"{name} {text!r} is neither a sequence nor a time: {expected}") from error
    moment = moment.replace(tzinfo=moment.tzinfo or UTC)
    since_1970 = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return max(-1, min(since_1970 // timedelta(microseconds=1) * 1_000, SEQ_MAX))


def _migrate(settings: Settings, options: argparse.Namespace) -> int:
    if options.to == "base" and not options.yes:
        raise Refused("--to base drops the archive with every commit: add --yes to confirm")
    before, after = Store(settings.audit_database).migrate_to(options.to)
    print(
        f"the archive's schema is revision {after or 'none'}"
        + (f", it was {before or 'none'}" if after != before else "")
    )
    return 0
