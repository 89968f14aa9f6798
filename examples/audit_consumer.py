#!/usr/bin/env python3
"""Follow the audit of a cluster: read every event once, in order, across restarts.

It needs only the standard library. Use it as a starting point for your own consumer.

    MUSTER_URL=http://host:8080 MUSTER_API_KEY=... ./audit_consumer.py --output events.ndjson
    ./audit_consumer.py --position last-id            prints events instead,
    and keeps the id of the last one in that file

The key must be an operator's or an administrator's. An event is one line of CloudEvents 1.0 JSON.
Its id is its position in the log.

With --output the last line of the file is the position from which a restart continues. The position
therefore always agrees with the file: no event is lost or repeated, whenever the program is killed.
With --position an event that was printed just before a kill may be printed again. The reader of the
output recognises a repeated event by its id.
"""

import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

# The gateway sends something every 10 s. A connection that is silent for longer is dead.
SILENCE_S = 30.0
PAUSE_S = 2.0
TAIL_BYTES = 4 << 20


def events(url: str, key: str, after: str) -> Iterator[tuple[str, bytes]]:
    """(id, JSON) of each event behind `after`, until the connection ends."""
    query = urllib.parse.urlencode({"follow": 1, "after": after})
    request = urllib.request.Request(
        f"{url}/v1/audit/events?{query}", headers={"Authorization": f"Bearer {key}"}
    )
    with urllib.request.urlopen(request, timeout=SILENCE_S) as stream:
        event_id = ""
        for line in stream:
            if line.startswith(b"id: "):
                event_id = line[4:].decode().strip()
            elif line.startswith(b"data: ") and line.endswith(b"\n"):
                yield event_id, line[6:].rstrip(b"\n")


class Appended:
    """A file of events; its last whole line says where to go on."""

    def __init__(self, path: Path) -> None:
        self.file: BinaryIO = path.open("a+b")
        self.after = ""
        size = self.file.seek(0, os.SEEK_END)
        self.file.seek(max(0, size - TAIL_BYTES))
        whole, _, torn = self.file.read().rpartition(b"\n")
        self.file.truncate(size - len(torn))
        if whole:
            self.after = json.loads(whole.rpartition(b"\n")[2])["id"]

    def take(self, event_id: str, data: bytes) -> None:
        self.file.write(data + b"\n")
        self.file.flush()
        self.after = event_id


class Printed:
    """Events on stdout; the last one's id in a file that is replaced whole."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.after = path.read_text().strip() if path is not None and path.exists() else ""

    def take(self, event_id: str, data: bytes) -> None:
        sys.stdout.buffer.write(data + b"\n")
        sys.stdout.buffer.flush()
        self.after = event_id
        if self.path is not None:
            beside = self.path.with_name(self.path.name + ".new")
            beside.write_text(event_id + "\n")
            beside.replace(self.path)


def follow(url: str, key: str, sink: Appended | Printed) -> None:
    """For ever; what passes (a restart, a lost connection) is waited for.

    What does not ends this program.
    """
    while True:
        try:
            for event_id, data in events(url, key, sink.after):
                sink.take(event_id, data)
        except urllib.error.HTTPError as error:
            if error.code < 500 and error.code != 429:
                sys.exit(
                    f"{url} refused: {error.code} {error.read(2_000).decode(errors='replace')}"
                )
            print(f"{url} answers {error.code}; again in {PAUSE_S:.0f} s", file=sys.stderr)
        except (OSError, ValueError) as error:
            print(f"{url}: {error}; again in {PAUSE_S:.0f} s", file=sys.stderr)
        time.sleep(PAUSE_S)


def main() -> None:
    parser = argparse.ArgumentParser(description="Follow the audit of a Muster cluster.")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--output", type=Path, help="append events to this file, and go on behind its last one"
    )
    where.add_argument(
        "--position", type=Path, help="print events, and keep the last one's id in this file"
    )
    parser.add_argument("--url", default=os.environ.get("MUSTER_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--key-file", type=Path, help="file with the API key; else MUSTER_API_KEY")
    asked = parser.parse_args()
    key = (
        asked.key_file.read_text().strip()
        if asked.key_file
        else os.environ.get("MUSTER_API_KEY", "")
    )
    sink = Appended(asked.output) if asked.output else Printed(asked.position)
    try:
        follow(asked.url.rstrip("/"), key, sink)
    except (KeyboardInterrupt, BrokenPipeError):
        sys.exit(0)


if __name__ == "__main__":
    main()
