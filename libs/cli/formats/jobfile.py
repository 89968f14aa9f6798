"""Reads job files: YAML documents with one job each, with the keys of `job_fields.py`.

It works on YAML's node tree, so every error names its line: `job.yaml:3: unknown key 'gpu' (did you
mean 'gpus'?)`. Strings keep their spelling (`env: {N: 010}` is "010"). `kubernetes.py` reads
documents with `apiVersion`. Pure. Tests: tests/unit/test_cli_jobfile.py.
"""

from difflib import get_close_matches
from typing import Any, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from libs.cli.flags.numbers import parse_nodes
from libs.cli.formats.container_fields import nested, read_mount
from libs.cli.formats.job_fields import (
    COMMAND,
    DURATION,
    FIELDS,
    MOUNTS,
    NAMES,
    NODES,
    NUMBER,
    SHELL,
    SIZE,
    TEXT,
    TEXTS,
    TRUTH,
    WHOLE,
    Written,
)
from libs.cli.formats.kubernetes import is_manifest, read_manifest
from libs.cli.formats.yaml_nodes import TAG, documents, fault, is_empty, items, place, what
from libs.common.durations import parse_duration
from libs.common.errors import Refused

JOBS_MAX: Final = 10_000
OTHER_NAMES: Final = {
    "cmd": "command",
    "args": "command",
    "script": "command",
    "time": "time_limit",
    "cwd": "workdir",
    "environment": "env",
}


def read_jobs(text: str, name: str) -> list[Written]:
    """Return the jobs of a file. Raises Refused with file, line, key and the expected type."""
    jobs = [
        read_manifest(node, name) if is_manifest(node) else _job(node, name)
        for node in documents(text, name)
    ]
    if not jobs:
        raise Refused(f"{name} contains no job")
    if len(jobs) > JOBS_MAX:
        raise Refused(f"{name} contains {len(jobs)} jobs; the limit is {JOBS_MAX} per file")
    return jobs


def _job(node: Node, name: str) -> Written:
    if not isinstance(node, MappingNode):
        raise fault(name, node, f"a job must be a mapping of keys to values, not {what(node)}")
    job: dict[str, Any] = {}
    for key, value in items(node, name):
        if key.value not in FIELDS:
            raise fault(name, key, f"unknown key '{key.value}'{_suggestion(key.value)}")
        field = FIELDS[key.value]
        if field.wire in job:
            raise fault(name, key, f"'{key.value}' sets a value that another key has set already")
        parsed = _value(name, key.value, value, field.form)
        job |= parsed if isinstance(parsed, dict) and field.form == NODES else {field.wire: parsed}
    if "command" not in job and "image" not in job:
        raise fault(name, node, f"'command' is missing: give {COMMAND}")
    return Written(place(name, node), nested(job))


def _value(name: str, key: str, node: Node, form: str) -> object:
    if form == COMMAND:
        return _command(name, node)
    if form == TEXTS:
        return _texts(name, key, node)
    if form in (NAMES, MOUNTS) and isinstance(node, SequenceNode):
        found = _names(name, key, node)
        return found if form == NAMES else _mounts(name, node, found)
    if not isinstance(node, ScalarNode) or is_empty(node) or form == MOUNTS:
        raise _wrong(name, key, node, form)
    if form in (TEXT, SIZE, NAMES):
        return node.value
    if form == DURATION:
        return _duration(name, key, node)
    if form == NODES:
        return _nodes(name, key, node)
    return _typed(name, key, node, form)


def _typed(name: str, key: str, node: ScalarNode, form: str) -> object:
    """Return a number or a boolean, as YAML reads it."""
    allowed = {WHOLE: ("int",), NUMBER: ("int", "float"), TRUTH: ("bool",)}[form]
    if node.tag.removeprefix(TAG) not in allowed:
        raise _wrong(name, key, node, form)
    value: object = yaml.safe_load(node.value)
    return value


def _nodes(name: str, key: str, node: ScalarNode) -> dict[str, int]:
    try:
        return parse_nodes(node.value)
    except ValueError:
        raise _wrong(name, key, node, NODES) from None


def _duration(name: str, key: str, node: ScalarNode) -> int:
    try:
        return parse_duration(node.value)
    except ValueError:
        raise _wrong(name, key, node, DURATION) from None


def _command(name: str, node: Node) -> list[str]:
    if isinstance(node, ScalarNode) and not is_empty(node) and node.value.strip():
        return [*SHELL, node.value]
    if not isinstance(node, SequenceNode) or not node.value:
        raise _wrong(name, "command", node, COMMAND)
    for item in node.value:
        if not isinstance(item, ScalarNode) or is_empty(item):
            raise fault(name, item, f"an argument of 'command' must be a string, not {what(item)}")
    return [item.value for item in node.value]


def _names(name: str, key: str, node: SequenceNode) -> list[str]:
    for item in node.value:
        if not isinstance(item, ScalarNode) or is_empty(item):
            raise fault(name, item, f"an item of '{key}' must be a string, not {what(item)}")
    return [item.value for item in node.value]


def _mounts(name: str, node: SequenceNode, texts: list[str]) -> list[dict[str, Any]]:
    try:
        return [read_mount(text) for text in texts]
    except ValueError as error:
        raise fault(name, node, str(error)) from None


def _texts(name: str, key: str, node: Node) -> dict[str, str]:
    if not isinstance(node, MappingNode):
        raise _wrong(name, key, node, TEXTS)
    for inner, value in items(node, name):
        if not isinstance(value, ScalarNode) or is_empty(value):
            raise fault(
                name, inner, f"'{inner.value}' in '{key}' must be a string, not {what(value)}"
            )
    return {inner.value: value.value for inner, value in node.value}


def _wrong(name: str, key: str, node: Node, form: str) -> Refused:
    return fault(name, node, f"'{key}' must be {form}, not {what(node)}")


def _suggestion(key: str) -> str:
    meant = OTHER_NAMES.get(key) or next(iter(get_close_matches(key, FIELDS, 1, 0.6)), "")
    return f" (did you mean '{meant}'?)" if meant else ""
