"""The descriptors of the proto files, from which programs make the classes of messages.

They are what protoc makes of the texts, but for the names in JSON, which are computed when they are
loaded. Tests: tests/unit/test_api_description.py.
"""

from collections.abc import Iterable
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from services.api_gateway.description.proto_kinds import WELL_KNOWN, Kind
from services.api_gateway.description.proto_model import Field, File, Message
from services.api_gateway.description.proto_text import uses_json
from services.api_gateway.rpc.methods import PACKAGE

TYPES: Final = {
    "string": FieldDescriptorProto.TYPE_STRING,
    "bytes": FieldDescriptorProto.TYPE_BYTES,
    "int64": FieldDescriptorProto.TYPE_INT64,
    "double": FieldDescriptorProto.TYPE_DOUBLE,
    "bool": FieldDescriptorProto.TYPE_BOOL,
}


def descriptor_set(files: Iterable[File]) -> bytes:
    """Return all files' descriptors, encoded."""
    found = FileDescriptorSet(file=[_file(file) for file in files])
    encoded: bytes = found.SerializeToString(deterministic=True)
    return encoded


def _file(file: File) -> FileDescriptorProto:
    imports = [f"muster/v1/{name}.proto" for name in file.imports]
    imports += ["google/protobuf/struct.proto"] if uses_json(file) else []
    found = FileDescriptorProto(
        name=file.name, package=PACKAGE, syntax="proto3", dependency=sorted(imports)
    )
    found.options.go_package = "muster/v1;musterv1"
    service = found.service.add(name=file.service)
    for call in file.calls:
        method = service.method.add(name=call.name)
        method.input_type = f".{PACKAGE}.{call.request}"
        method.output_type = f".{PACKAGE}.{call.answer}"
        # protoc leaves out what is false.
        if call.streams_requests:
            method.client_streaming = True
        if call.streams_answers:
            method.server_streaming = True
    found.message_type.extend(_message(message) for message in file.messages)
    return found


def _message(message: Message) -> DescriptorProto:
    found = DescriptorProto(name=message.name)
    for name, number in message.removed:
        found.reserved_range.add(start=number, end=number + 1)
        found.reserved_name.append(name)
    for field in message.fields:
        _add_field(found, message, field)
    return found


def _add_field(found: DescriptorProto, message: Message, field: Field) -> None:
    kind = field.kind
    row = found.field.add(
        name=field.name, number=field.number, label=FieldDescriptorProto.LABEL_OPTIONAL
    )
    if kind.is_repeated or kind.is_map:
        row.label = FieldDescriptorProto.LABEL_REPEATED
    if not kind.is_map:
        _set_type(row, kind)
    else:
        entry = found.nested_type.add(name=_entry_name(field.name))
        entry.options.map_entry = True
        label = FieldDescriptorProto.LABEL_OPTIONAL
        entry.field.add(name="key", number=1, type=TYPES["string"], label=label)
        _set_type(entry.field.add(name="value", number=2, label=label), kind)
        row.type = FieldDescriptorProto.TYPE_MESSAGE
        row.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
    if field.is_optional:
        row.proto3_optional = True
        row.oneof_index = len(found.oneof_decl)
        found.oneof_decl.add(name=f"_{field.name}")


def _set_type(row: FieldDescriptorProto, kind: Kind) -> None:
    if not kind.is_message:
        row.type = TYPES[kind.name]
        return
    row.type = FieldDescriptorProto.TYPE_MESSAGE
    row.type_name = f".{kind.name}" if kind.name in WELL_KNOWN else f".{PACKAGE}.{kind.name}"


def _entry_name(name: str) -> str:
    """Return the name that protoc gives to the entries of a map."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_")) + "Entry"
