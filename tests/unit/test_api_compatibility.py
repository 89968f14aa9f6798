"""A client of an earlier release works with this one: the descriptions of all releases are kept in
tests/golden/api/, and each fault that is planted in a description is found.
"""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet

from services.api_gateway.description.files import DESCRIPTORS, OPENAPI
from tests.compatibility import broken_messages, broken_routes
from tests.tidy import ROOT

RELEASES = sorted(path.name for path in (ROOT / "tests" / "golden" / "api").iterdir())
Document = dict[str, Any]


def golden(release: str, name: str) -> bytes:
    return (ROOT / "tests" / "golden" / "api" / release / name).read_bytes()


def described() -> Document:
    found: Document = json.loads((ROOT / OPENAPI).read_text())
    return found


def descriptors() -> FileDescriptorSet:
    return FileDescriptorSet.FromString((ROOT / DESCRIPTORS).read_bytes())


@pytest.mark.parametrize("release", RELEASES)
def test_no_route_of_an_earlier_release_is_broken(release: str) -> None:
    assert broken_routes(json.loads(golden(release, "openapi.json")), described()) == []


@pytest.mark.parametrize("release", RELEASES)
def test_no_message_of_an_earlier_release_is_broken(release: str) -> None:
    old = FileDescriptorSet.FromString(golden(release, "descriptors.binpb"))
    assert broken_messages(old, descriptors()) == []


def remove_route(document: Document) -> None:
    del document["paths"]["/v1/jobs"]["post"]


def remove_parameter(document: Document) -> None:
    document["paths"]["/v1/jobs"]["get"]["parameters"].pop()


def retype_parameter(document: Document) -> None:
    document["paths"]["/v1/jobs"]["get"]["parameters"][0]["schema"]["type"] = "integer"


def require_parameter(document: Document) -> None:
    added = {"name": "colour", "in": "query", "required": True, "schema": {"type": "string"}}
    document["paths"]["/v1/jobs"]["get"]["parameters"].append(added)


def body_of(document: Document) -> Document:
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]
    found: Document = body["content"]["application/json"]["schema"]
    return found


def remove_field(document: Document) -> None:
    del body_of(document)["properties"]["gpus"]


def require_field(document: Document) -> None:
    body_of(document)["required"] = ["command"]


def remove_word(document: Document) -> None:
    body_of(document)["properties"]["numa"]["enum"].remove("required")


def narrow_bounds(document: Document) -> None:
    body_of(document)["properties"]["gpus"]["maximum"] = 8


def remove_answer_field(document: Document) -> None:
    del document["components"]["schemas"]["JobShown"]["properties"]["state"]


def retype_answer_field(document: Document) -> None:
    document["components"]["schemas"]["JobShown"]["properties"]["seq"] = {"type": "string"}


def require_nested_field(document: Document) -> None:
    document["components"]["schemas"]["Mount"]["required"].append("colour")


def remove_type(document: Document) -> None:
    del document["components"]["schemas"]["Why"]


def remove_status(document: Document) -> None:
    del document["paths"]["/v1/jobs"]["post"]["responses"]["201"]


def retype_answer(document: Document) -> None:
    content = document["paths"]["/v1/jobs"]["get"]["responses"]["200"]["content"]
    content["application/json"]["schema"] = {"type": "string"}


def refuse_media(document: Document) -> None:
    body = document["paths"]["/v1/jobs"]["post"]["requestBody"]["content"]
    body["text/plain"] = body.pop("application/json")


@pytest.mark.parametrize(
    "plant",
    [
        remove_route,
        remove_parameter,
        retype_parameter,
        require_parameter,
        remove_field,
        require_field,
        remove_word,
        narrow_bounds,
        remove_answer_field,
        retype_answer_field,
        require_nested_field,
        remove_type,
        remove_status,
        retype_answer,
        refuse_media,
    ],
    ids=lambda plant: plant.__name__,
)
def test_a_fault_planted_in_the_routes_is_found(plant: Callable[[Document], None]) -> None:
    new = deepcopy(old := described())
    plant(new)
    assert len(broken_routes(old, new)) == 1


def test_additions_to_the_routes_are_no_faults() -> None:
    new = deepcopy(old := described())
    new["paths"]["/v1/colours"] = new["paths"]["/v1/jobs"]
    body_of(new)["properties"]["colour"] = {"type": "string"}
    body_of(new)["properties"]["numa"]["enum"].append("colour")
    new["components"]["schemas"]["JobShown"]["properties"]["colour"] = {"type": "string"}
    new["components"]["schemas"]["JobShown"]["required"].append("colour")
    assert broken_routes(old, new) == []


def renumber(files: FileDescriptorSet) -> None:
    files.file[0].message_type[0].field[0].number = 99


def retype(files: FileDescriptorSet) -> None:
    field = files.file[0].message_type[-1].field[-1]
    field.type = field.TYPE_BOOL if field.type != field.TYPE_BOOL else field.TYPE_STRING


def drop_field(files: FileDescriptorSet) -> None:
    files.file[0].message_type[0].field.pop()


def drop_message(files: FileDescriptorSet) -> None:
    files.file[0].message_type.pop()


def drop_method(files: FileDescriptorSet) -> None:
    files.file[0].service[0].method.pop()


def stream_method(files: FileDescriptorSet) -> None:
    files.file[0].service[0].method[0].server_streaming = True


def reuse_number(files: FileDescriptorSet) -> None:
    files.file[0].message_type[0].field[0].name = "colour"


@pytest.mark.parametrize(
    "plant",
    [renumber, retype, drop_field, drop_message, drop_method, stream_method, reuse_number],
    ids=lambda plant: plant.__name__,
)
def test_a_fault_planted_in_the_messages_is_found(
    plant: Callable[[FileDescriptorSet], None],
) -> None:
    new = descriptors()
    plant(new)
    assert broken_messages(descriptors(), new)


def test_additions_to_the_messages_are_no_faults() -> None:
    new = descriptors()
    new.file[0].message_type[0].field.add(name="colour", number=999)
    new.file[0].message_type.add(name="Colour")
    new.file[0].service[0].method.add(name="Paint")
    assert broken_messages(descriptors(), new) == []
