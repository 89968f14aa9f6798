"""The files that are made from the description are what the code gives now, protoc reads the proto
files as the descriptors say, and every method has its route.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet

from services.api_gateway.access.roles import ROUTES
from services.api_gateway.description import proto_model
from services.api_gateway.description.files import (
    DESCRIPTORS,
    NUMBERS,
    PROTO,
    generated,
    numbers_of,
)
from services.api_gateway.description.proto_descriptors import descriptor_set
from services.api_gateway.description.proto_text import proto_text
from services.api_gateway.http.client_models import description
from services.api_gateway.rpc.methods import METHODS, SERVICES, Kind
from tests.tidy import ROOT

Document = dict[str, Any]


@pytest.fixture(scope="module")
def document() -> Document:
    return description()


def test_every_generated_file_is_what_the_code_gives_now(document: Document) -> None:
    found = generated(ROOT, document)
    differing = [
        name
        for name, content in found.items()
        if not (ROOT / name).exists() or (ROOT / name).read_bytes() != content
    ]
    assert differing == [], "`make generate` writes them"


def test_no_proto_file_is_left_over(document: Document) -> None:
    kept = {str(path.relative_to(ROOT)) for path in (ROOT / PROTO).rglob("*") if path.is_file()}
    assert kept == {name for name in generated(ROOT, document) if name.startswith(PROTO)}


def without_json_names(message: DescriptorProto) -> None:
    for field in message.field:
        field.ClearField("json_name")
    for nested in message.nested_type:
        without_json_names(nested)


def compiled(folder: Path, out: Path) -> FileDescriptorSet:
    """Return the descriptors that protoc makes of the proto files."""
    names = [f"muster/v1/{service.lower()}.proto" for service in SERVICES]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}"]
    subprocess.run([*command, f"--descriptor_set_out={out}", *names], check=True)
    found = FileDescriptorSet.FromString(out.read_bytes())
    for message in (each for file in found.file for each in file.message_type):
        without_json_names(message)
    return found


def test_protoc_reads_what_the_descriptors_say(tmp_path: Path) -> None:
    kept = FileDescriptorSet.FromString((ROOT / DESCRIPTORS).read_bytes())
    assert compiled(ROOT / PROTO, tmp_path / "found") == kept


def test_a_field_that_goes_leaves_its_number_reserved(document: Document, tmp_path: Path) -> None:
    numbers = numbers_of(ROOT)
    numbers["Job"]["colour"] = 999
    files = proto_model.files(document, numbers)
    jobs = proto_text(files[0])
    assert "  reserved 999;\n" in jobs and '  reserved "colour";\n' in jobs
    for file in files:
        path = tmp_path / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(proto_text(file))
    expected = FileDescriptorSet.FromString(descriptor_set(files))
    assert compiled(tmp_path, tmp_path / "found") == expected


def test_a_new_field_gets_a_number_that_no_field_had(document: Document) -> None:
    numbers = numbers_of(ROOT)
    numbers["Job"]["colour"] = 999
    del numbers["Job"]["image"]
    proto_model.files(document, numbers)
    assert numbers["Job"]["image"] == 1_000


def test_no_two_fields_of_a_message_have_one_number() -> None:
    numbers = numbers_of(ROOT)
    assert [
        name for name, fields in numbers.items() if len(set(fields.values())) < len(fields)
    ] == [], f"{NUMBERS} is only added to"


def test_every_method_has_a_route_with_roles() -> None:
    assert [
        each.name for each in METHODS if each.kind is not Kind.CALL and each.route not in ROUTES
    ] == []


def test_no_two_methods_have_one_name() -> None:
    names = [each.name for each in METHODS]
    assert len(names) == len(set(names))


def test_every_service_is_named_in_the_files() -> None:
    assert list(proto_model.TEXTS) == list(SERVICES)
