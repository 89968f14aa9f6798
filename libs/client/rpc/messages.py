"""Messages from Python values, and typed errors from gRPC's.

Tests: tests/unit/test_client_rpc.py.
"""

import os
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Final

import grpc
from google.protobuf.descriptor import FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message

from libs.client.errors import ApiError, InvalidRequest, Unavailable, error_of
from libs.rpc.messages import PACKAGE, class_of, services

STATUS: Final = "muster-status"
PROBLEM: Final = "muster-problem"
# A call that never left this machine.
NOT_SENT: Final = "failed to connect"


def method_of(name: str) -> MethodDescriptor:
    """Return the method of a name such as Jobs/GetJob. Raises InvalidRequest."""
    service, _, method = name.partition("/")
    known = services()
    if f"{PACKAGE}.{service}" not in known:
        names = ", ".join(each.rpartition(".")[2] for each in known)
        raise InvalidRequest(f"method: {name!r} is of no service: give one of {names}, /, a method")
    found = known[f"{PACKAGE}.{service}"].methods_by_name.get(method)
    if found is None:
        names = ", ".join(each.name for each in known[f"{PACKAGE}.{service}"].methods)
        raise InvalidRequest(f"method: {service} has no method {method!r}: give one of {names}")
    return found


def message_of(descriptor: Any, fields: Mapping[str, Any]) -> Message:  # noqa: ANN401  protobuf's
    """Return a message with these fields; those that are None are left out.

    Raises InvalidRequest naming a field that is unknown or has a value of another type.
    """
    kind = class_of(descriptor)
    found = kind()
    for name, value in fields.items():
        if value is None:
            continue
        field = descriptor.fields_by_name.get(name)
        if field is None:
            near = get_close_matches(name, descriptor.fields_by_name, 1)
            advice = f"did you mean {near[0]}?" if near else f"see proto/ for {descriptor.name}"
            raise InvalidRequest(f"{name}: not a field of {descriptor.name}: {advice}", field=name)
        try:
            found.MergeFrom(kind(**{name: _given(field, value)}))
        except (TypeError, ValueError) as error:
            raise InvalidRequest(f"{name}: {value!r} does not fit: {error}", field=name) from error
    return found


def _given(field: FieldDescriptor, value: Any) -> Any:  # noqa: ANN401  any field
    """Return a value in the form of its field: texts for numbers and paths, a list for a text."""
    if field.type != FieldDescriptor.TYPE_STRING:
        return value
    if field.is_repeated:
        each = (value,) if isinstance(value, str | os.PathLike) else value
        return [_text(one) for one in each]
    return _text(value)


def _text(value: Any) -> Any:  # noqa: ANN401  any value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return str(value) if is_number else value


def error_from(error: grpc.RpcError, what: str, target: str) -> ApiError:
    """Return the typed error of a failed call."""
    metadata = dict(error.trailing_metadata() or ())
    status = metadata.get(STATUS, "")
    if status.isdigit():
        return error_of(int(status), metadata.get(PROBLEM, "").encode(), what)
    code, text = error.code(), str(error.details() or "")
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        sent = NOT_SENT not in text
        advice = "it may still carry out the call" if sent else "check the address, and TLS"
        return Unavailable(f"{target} did not answer {what}: {text}; {advice}", sent=sent)
    if code == grpc.StatusCode.DEADLINE_EXCEEDED:
        return Unavailable(f"{target} did not answer {what} in time; it may still carry it out")
    if code == grpc.StatusCode.UNIMPLEMENTED:
        return ApiError(f"{target} does not know {what}: its gateway is older than this client")
    return ApiError(f"{what} failed at {target}: {code.name}: {text}")
