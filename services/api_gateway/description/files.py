"""Every file that is made from the description, by its path in the project.

Tests: tests/unit/test_api_description.py.
"""

import json
from pathlib import Path
from typing import Final

import msgspec

from services.api_gateway.description import proto_model
from services.api_gateway.description.proto_descriptors import descriptor_set
from services.api_gateway.description.proto_kinds import Schema
from services.api_gateway.description.proto_model import Numbers
from services.api_gateway.description.proto_text import proto_text
from services.api_gateway.description.reference_page import reference
from services.api_gateway.http import client_models

OPENAPI: Final = "docs/reference/openapi.json"
REFERENCE: Final = "docs/api_reference.md"
PROTO: Final = "proto"
NUMBERS: Final = "proto/muster/v1/numbers.json"
DESCRIPTORS: Final = "libs/rpc/descriptors.binpb"


def generated(root: Path, document: Schema) -> dict[str, bytes]:
    """Return the content of each file. The numbers that fields have already stay."""
    numbers = numbers_of(root)
    protos = proto_model.files(document, numbers)
    texts = {
        OPENAPI: as_json(document),
        REFERENCE: reference(document),
        NUMBERS: _as_table(numbers),
        **{f"{PROTO}/{file.name}": proto_text(file) for file in protos},
        **{
            f"{client_models.FOLDER}/{name}": text
            for name, text in client_models.sources(document).items()
        },
    }
    encoded = {name: text.encode() for name, text in texts.items()}
    return {**encoded, DESCRIPTORS: descriptor_set(protos)}


def numbers_of(root: Path) -> Numbers:
    """Return the numbers of fields as they are checked in."""
    path = root / NUMBERS
    return msgspec.json.decode(path.read_bytes(), type=Numbers) if path.exists() else {}


def _as_table(numbers: Numbers) -> str:
    rows = {name: dict(sorted(numbers[name].items(), key=lambda row: row[1])) for name in numbers}
    return json.dumps(dict(sorted(rows.items())), indent=1) + "\n"


def as_json(value: object) -> str:
    """Return JSON whose order does not depend on the code's."""
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
