"""YAML's node tree, which keeps line numbers: descriptions of nodes, and errors with their place.

Pure. Used by `jobfile.py` and `kubernetes.py`; tests: their tests.
"""

from collections.abc import Iterator
from typing import Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from libs.common.errors import Refused

SHOWN_MAX: Final = 40

TAG: Final = "tag:yaml.org,2002:"
TYPE_NAMES: Final = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "a truth value",
    "null": "nothing",
}


def documents(text: str, name: str) -> list[Node]:
    """Return the root of every non-empty document. Raises Refused for invalid YAML."""
    try:
        return [
            node
            for node in yaml.compose_all(text, Loader=yaml.SafeLoader)
            if node is not None and not is_empty(node)
        ]
    except yaml.MarkedYAMLError as error:
        raise Refused(
            f"{name}:{_line(error)}: invalid YAML: {error.problem or error.context}"
        ) from error
    except yaml.YAMLError as error:
        raise Refused(f"{name}: invalid YAML: {error}") from error


def _line(error: yaml.MarkedYAMLError) -> int:
    mark = error.problem_mark or error.context_mark
    return mark.line + 1 if mark else 1


def is_empty(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == TAG + "null"


def items(node: MappingNode, name: str) -> Iterator[tuple[ScalarNode, Node]]:
    """Yield the pairs of a mapping. Raises Refused for a key that is repeated or not a scalar."""
    seen: set[str] = set()
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise fault(name, key, f"a key must be a string, not {what(key)}")
        if key.value in seen:
            raise fault(name, key, f"the key '{key.value}' is repeated: remove one")
        seen.add(key.value)
        yield key, value


def place(name: str, node: Node) -> str:
    """Return the place of a node, for example `job.yaml:12`."""
    return f"{name}:{node.start_mark.line + 1}"


def fault(name: str, node: Node, text: str) -> Refused:
    return Refused(f"{place(name, node)}: {text}")


def what(node: Node) -> str:
    """Return a description of a node for errors, for example `a string ('two')`."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list" if node.value else "an empty list"
    kind = TYPE_NAMES.get(node.tag.removeprefix(TAG), "a value")
    return kind if is_empty(node) else f"{kind} ({node.value[:SHOWN_MAX]!r})"
