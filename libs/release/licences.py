"""The licences of what a release brings with it, read in the environment where it is installed.

Tests: tests/unit/test_release_files.py.
"""

import json
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

# Runs in the environment of the wheel, which has none of these modules.
READ: Final = """
import importlib.metadata, json, sys
rows = []
for each in importlib.metadata.distributions():
    meta = each.metadata
    classifiers = [c.rsplit(" :: ", 1)[1] for c in meta.get_all("Classifier") or ()
                   if c.startswith("License ::")]
    rows.append([meta["Name"], each.version, meta.get("License-Expression") or "",
                 meta.get("License") or "", classifiers])
json.dump(rows, sys.stdout)
"""
# Words of licences that allow use, change and distribution beside the Apache licence.
ALLOWED: Final = (
    "apache",
    "mit",
    "bsd",
    "isc",
    "psf",
    "python software foundation",
    "mozilla public license 2.0",
    "mpl-2.0",
    "the unlicense",
    "lgpl",
)
READ_S: Final = 60.0
LICENCE_CHARS_MAX: Final = 100


class Licensed(NamedTuple):
    """One package that the release brings, with its licence in few words."""

    name: str
    version: str
    licence: str


def installed(python: Path) -> list[Licensed]:
    """Return the packages of an environment, sorted by name."""
    done = subprocess.run(
        [str(python), "-c", READ], capture_output=True, text=True, check=True, timeout=READ_S
    )
    found = {row[0].lower(): licensed(*row) for row in json.loads(done.stdout)}
    return [found[name] for name in sorted(found)]


def licensed(
    name: str, version: str, expression: str, text: str, classifiers: list[str]
) -> Licensed:
    """Return the row of one package: its expression, else its classifiers, else its own words."""
    first = text.strip().splitlines()[0] if text.strip() else ""
    said = expression or ", ".join(classifiers) or first or "not stated"
    return Licensed(name, version, said[:LICENCE_CHARS_MAX])


def unknown(rows: list[Licensed]) -> list[Licensed]:
    """Return the packages whose licence is not among the allowed ones."""
    return [row for row in rows if not any(word in row.licence.lower() for word in ALLOWED)]


def page(rows: list[Licensed], product: str) -> str:
    """Return the page with all licences, without the product itself."""
    table = [
        f"| {row.name} | {row.version} | {row.licence} |"
        for row in rows
        if row.name.lower() != product
    ]
    return "\n".join(
        [
            "# Licences of the dependencies",
            "",
            "`make release` writes this file. Each package carries its licence text in its",
            "`*.dist-info` folder; the dashboard's vendored files in",
            "`services/api_gateway/dashboard/static/vendor/licences/`.",
            "",
            "| package | version | licence |",
            "| --- | --- | --- |",
            *table,
            "",
        ]
    )
