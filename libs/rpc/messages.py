"""The classes of messages and the descriptors of services, made when this module is imported.

They stand in protobuf's own pool, beside classes that protoc generates of the same files.
"""

from functools import cache
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pool, message_factory, struct_pb2
from google.protobuf.descriptor import Descriptor, ServiceDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import Message

PACKAGE: Final = "muster.v1"
FILE: Final = Path(__file__).with_name("descriptors.binpb")
STRUCT_FILE: Final = struct_pb2.DESCRIPTOR.name


def _load() -> tuple[str, ...]:
    """Add the files to the pool, and return their names."""
    files = FileDescriptorSet.FromString(FILE.read_bytes()).file
    for each in files:
        descriptor_pool.Default().AddSerializedFile(each.SerializeToString())
    return tuple(each.name for each in files)


FILES: Final = _load()


@cache
def services() -> dict[str, ServiceDescriptor]:
    """Return the services by their full names."""
    pool = descriptor_pool.Default()
    return {
        service.full_name: service
        for name in FILES
        for service in pool.FindFileByName(name).services_by_name.values()
    }


@cache
def message(name: str) -> type[Message]:
    """Return the class of a message by its name in this package. Raises KeyError."""
    found: Descriptor = descriptor_pool.Default().FindMessageTypeByName(f"{PACKAGE}.{name}")
    return class_of(found)


@cache
def class_of(descriptor: Any) -> type[Message]:  # noqa: ANN401  a class of protobuf's own
    """Return the class of a descriptor's messages."""
    found: type[Message] = message_factory.GetMessageClass(descriptor)
    return found
