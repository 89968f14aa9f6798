"""Reads job files: YAML documents, one job each, in the short form that `job_fields.py` lists.

Works on YAML's node tree, so that every fault names its line: `job.yaml:3: unknown key 'gpu' (did you mean 'gpus'?)`.
A text keeps what was written (`env: {N: 010}` is "010"). Pure. Tests: tests/unit/test_cli_jobfile.py.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from libs.cli.durations import parse_duration
from libs.cli.job_fields import COMMAND, DURATION, FIELDS, NAMES, NUMBER, SHELL, SIZE, TEXT, TEXTS, TRUTH, WHOLE
from libs.common.errors import Refused

JOBS_MAX: Final = 10_000
SHOWN_MAX: Final = 40

TAG: Final = "tag:yaml.org,2002:"
TYPE_NAMES: Final = {"int": "a whole number", "float": "a number", "str": "a text", "bool": "a truth value", "null": "nothing"}
MEANT: Final = {"cmd": "command", "args": "command", "script": "command", "time": "time_limit", "cwd": "workdir", "environment": "env"}


class Written(NamedTuple):
    """A job as the gateway takes it, and where it was written (`job.yaml:12`), for faults found later."""

    place: str
    job: dict[str, Any]


def read_jobs(text: str, name: str) -> list[Written]:
    """Every job of a file. Raises Refused naming file, line, key and what is expected."""
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.MarkedYAMLError as error:
        raise Refused(f"{name}:{_line(error)}: this is not YAML: {error.problem or error.context}") from error
    except yaml.YAMLError as error:
        raise Refused(f"{name}: this is not YAML: {error}") from error
    jobs = [_job(node, name) for node in documents if not _empty(node)]
    if not jobs:
        raise Refused(f"{name}: there is no job in it")
    if len(jobs) > JOBS_MAX:
        raise Refused(f"{name}: {len(jobs)} jobs are over the bound of {JOBS_MAX} a file")
    return jobs


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def _empty(node: Node | None) -> bool:
    return node is None or (isinstance(node, ScalarNode) and node.tag == TAG + "null")


def _job(node: Node, name: str) -> Written:
    if not isinstance(node, MappingNode):
        raise _fault(name, node, f"a job is a mapping of keys to values, this is {_what(node)}")
    job = {}
    for key, value in _items(node, name):
        if key.value not in FIELDS:
            raise _fault(name, key, f"unknown key '{key.value}'{_meant(key.value)}")
        field = FIELDS[key.value]
        if field.wire in job:
            raise _fault(name, key, f"'{key.value}' says again what another key has said")
        job[field.wire] = _value(name, key.value, value, field.form)
    if "command" not in job:
        raise _fault(name, node, f"there is no 'command': it must be {COMMAND}")
    return Written(f"{name}:{node.start_mark.line + 1}", job)


def _items(node: MappingNode, name: str) -> Iterator[tuple[ScalarNode, Node]]:
    """The pairs of a mapping; a key must be a scalar, and stand there once."""
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise _fault(name, key, f"a key must be a word, this is {_what(key)}")
        if key.value in seen:
            raise _fault(name, key, f"'{key.value}' is there twice")
        seen.add(key.value)
        yield key, value


def _value(name: str, key: str, node: Node, form: str) -> object:
    if form == COMMAND:
        return _command(name, node)
    if form == TEXTS:
        return _texts(name, key, node)
    if form == NAMES and isinstance(node, SequenceNode):
        return _names(name, key, node)
    if not isinstance(node, ScalarNode) or _empty(node):
        raise _wrong(name, key, node, form)
    if form in (TEXT, SIZE, NAMES):
        return node.value
    if form == DURATION:
        return _duration(name, key, node)
    return _typed(name, key, node, form)


def _typed(name: str, key: str, node: ScalarNode, form: str) -> object:
    """A number or a truth, by YAML's own reading of it."""
    allowed = {WHOLE: ("int",), NUMBER: ("int", "float"), TRUTH: ("bool",)}[form]
    if node.tag.removeprefix(TAG) not in allowed:
        raise _wrong(name, key, node, form)
    value: object = yaml.safe_load(node.value)
    return value


def _duration(name: str, key: str, node: ScalarNode) -> int:
    try:
        return parse_duration(node.value)
    except ValueError:
        raise _wrong(name, key, node, DURATION) from None


def _command(name: str, node: Node) -> list[str]:
    if isinstance(node, ScalarNode) and not _empty(node) and node.value.strip():
        return [*SHELL, node.value]
    if not isinstance(node, SequenceNode) or not node.value:
        raise _wrong(name, "command", node, COMMAND)
    for item in node.value:
        if not isinstance(item, ScalarNode) or _empty(item):
            raise _fault(name, item, f"an argument of 'command' must be a text, not {_what(item)}")
    return [item.value for item in node.value]


def _names(name: str, key: str, node: SequenceNode) -> list[str]:
    for item in node.value:
        if not isinstance(item, ScalarNode) or _empty(item):
            raise _fault(name, item, f"an item of '{key}' must be a text, not {_what(item)}")
    return [item.value for item in node.value]


def _texts(name: str, key: str, node: Node) -> dict[str, str]:
    if not isinstance(node, MappingNode):
        raise _wrong(name, key, node, TEXTS)
    for inner, value in _items(node, name):
        if not isinstance(value, ScalarNode) or _empty(value):
            raise _fault(name, inner, f"'{inner.value}' of '{key}' must be a text, not {_what(value)}")
    return {inner.value: value.value for inner, value in node.value}


def _wrong(name: str, key: str, node: Node, form: str) -> Refused:
    return _fault(name, node, f"'{key}' must be {form}, not {_what(node)}")


def _fault(name: str, node: Node, text: str) -> Refused:
    return Refused(f"{name}:{node.start_mark.line + 1}: {text}")


def _what(node: Node) -> str:
    """A node as a fault names it: `the text 'two'`."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list" if node.value else "an empty list"
    kind = TYPE_NAMES.get(node.tag.removeprefix(TAG), "a value")
    return kind if _empty(node) else f"{kind} ({node.value[:SHOWN_MAX]!r})"


def _meant(key: str) -> str:
    meant = MEANT.get(key) or next(iter(get_close_matches(key, FIELDS, 1, 0.6)), "")
    return f" (did you mean '{meant}'?)" if meant else ""
