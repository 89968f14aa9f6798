"""Reads the catalogue of errors (error_catalogue.json beside this file), and the site's own rows.

The data has its own edition: a newer table is a newer file, without a change of code.
MUSTER_HEALTH_CATALOGUE selects the catalogue. The alternative one only has the rows that differ;
they precede the rows of NVIDIA's guidance.
"""

from pathlib import Path
from typing import Final

import msgspec

from libs.common.devices.error_catalogue import (
    CATALOGUES,
    NVIDIA_GUIDANCE,
    VERDICTS,
    Catalogue,
    Row,
)
from libs.common.errors import Refused

FILE: Final = Path(__file__).with_name("error_catalogue.json")


class _Data(msgspec.Struct, frozen=True, rename={"alternative": "platform-design"}):
    edition: str
    rows: tuple[Row, ...]
    alternative: tuple[Row, ...]


def catalogue(name: str = NVIDIA_GUIDANCE) -> Catalogue:
    """Return the catalogue of this name. Raises Refused for an unknown name."""
    if name not in CATALOGUES:
        raise Refused(
            f"MUSTER_HEALTH_CATALOGUE={name!r} is not known: use {' or '.join(CATALOGUES)}"
        )
    data = msgspec.json.decode(FILE.read_bytes(), type=_Data)
    rows = data.rows if name == NVIDIA_GUIDANCE else (*data.alternative, *data.rows)
    return Catalogue(f"{name} {data.edition}", rows)


def site_rows(setting: str) -> dict[str, str]:
    """Return the site's own rows, given as "xid 74=reset, xid 144=replace". Raises Refused for an
    unknown verdict.
    """
    found = {}
    for part in filter(None, map(str.strip, setting.split(","))):
        error, _, verdict = map(str.strip, part.partition("="))
        if verdict not in VERDICTS:
            raise Refused(
                f"MUSTER_HEALTH_SITE: {part!r} must be ERROR=VERDICT, and the verdict one of "
                f"{', '.join(VERDICTS)}"
            )
        found[error] = verdict
    return found
