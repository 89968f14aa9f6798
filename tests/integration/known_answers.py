"""The fields that a gateway's answers have, by the table from which its OpenAPI document is made.

A stub that answers with any other field plays a gateway that does not exist: a verb tested against
it proves nothing.
"""

import types
from functools import cache
from typing import Any, Union, get_args, get_origin

import msgspec

from services.api_gateway.http.answers import ANSWERS


def unknown_fields(method: str, path: str, value: object) -> list[str]:
    """Return the fields of `value`, as dotted paths, that no answer of this route has.

    A field that is missing is no fault.
    """
    answer = ANSWERS.get(_route(method, path.split("?")[0]))
    if answer is None:
        return [f"{method} {path} is no route of the gateway"]
    found = [_unknown(kind, value, "") for kind in answer.kinds]
    return min(found, key=len) if found else []


@cache
def _route(method: str, path: str) -> tuple[str, str]:
    """The route as the table names it; a word of its own goes before a variable."""
    words = path.split("/")
    fitting = [
        route for route in ANSWERS if route[0] == method and _fits(route[1].split("/"), words)
    ]
    return min(fitting, key=lambda route: route[1].count("{"), default=(method, path))


def _fits(pattern: list[str], words: list[str]) -> bool:
    return len(pattern) == len(words) and all(
        part.startswith("{") or part == word for part, word in zip(pattern, words, strict=True)
    )


def _unknown(kind: Any, value: object, at: str) -> list[str]:
    if value is None or kind is Any:
        return []
    if get_origin(kind) in (Union, types.UnionType):
        return min((_unknown(each, value, at) for each in get_args(kind)), key=len)
    if isinstance(value, list) and get_origin(kind) in (list, tuple):
        return [said for each in value for said in _unknown(get_args(kind)[0], each, f"{at}[]")]
    if isinstance(value, dict) and get_origin(kind) is dict:
        return [
            said
            for name, each in value.items()
            for said in _unknown(get_args(kind)[1], each, f"{at}.{name}")
        ]
    if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return _unknown_of(kind, value, at)
    return [f"{at} is no {kind}"] if isinstance(value, dict | list) else []


def _unknown_of(kind: type[msgspec.Struct], value: dict[str, Any], at: str) -> list[str]:
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    tag = kind.__struct_config__.tag_field
    found = []
    for name, each in value.items():
        if name in known:
            found += _unknown(known[name], each, f"{at}.{name}")
        elif name != tag:
            found.append(f"{at}.{name}")
    return found
