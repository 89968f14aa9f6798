"""The tree of a Kubernetes manifest: every key that is not read becomes a warning.

So no part of a manifest is dropped silently, also not keys of newer versions. Pure. Tests:
tests/unit/test_cli_kubernetes.py.
"""

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Final

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from libs.cli.formats.kubernetes_reasons import REASONS
from libs.cli.formats.yaml_nodes import fault, is_empty, items, place, what
from libs.common.errors import Refused

_QUANTITY: Final = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?")
_UNITS: Final = {
    "m": Fraction(1, 1_000),
    **{unit: Fraction(1_000) ** (step + 1) for step, unit in enumerate("kMGTP")},
}
_BINARY: Final = {f"{unit}i": Fraction(1_024) ** (step + 1) for step, unit in enumerate("KMGTP")}
_FACTORS: Final = {"": Fraction(1), **_UNITS, **_BINARY}


class Reading:
    """The reading of one manifest: its sections, and the warnings by line."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.sections: list[Section] = []
        self.warned: list[tuple[int, str]] = []

    def warn(self, node: Node, text: str) -> None:
        self.warned.append((node.start_mark.line, f"{place(self.name, node)}: {text}"))

    def fault(self, node: Node, text: str) -> Refused:
        return fault(self.name, node, text)

    def warnings(self) -> tuple[str, ...]:
        """Return all warnings, including those about keys that were not read and are not empty."""
        for section in self.sections:
            for key, value in section.left():
                if not _is_blank(value):
                    self.warn(key, f"{section.path}{key.value}: not honoured{_reason(key.value)}")
        return tuple(text for _, text in sorted(self.warned))


def quantity_of(text: str) -> Fraction | None:
    """Return a quantity such as `500m` or `16Gi`; None for another text."""
    match = _QUANTITY.fullmatch(text)
    return None if match is None else Fraction(match[1]) * _FACTORS[match[2] or ""]


def _reason(key: str) -> str:
    return f": {REASONS[key]}" if key in REASONS else ""


def _is_blank(node: Node) -> bool:
    return is_empty(node) or (isinstance(node, MappingNode | SequenceNode) and not node.value)


class Section:
    """A mapping at a path, or an empty one.

    `at` is its node, or the nearest node around it.
    """

    def __init__(self, reading: Reading, node: Node | None, path: str, around: Node) -> None:
        if node is not None and not isinstance(node, MappingNode):
            raise reading.fault(node, f"'{path.rstrip('.')}' must be a mapping, not {what(node)}")
        self.reading = reading
        self.path = path
        self.at = around if node is None else node
        self._found = (
            {key.value: (key, value) for key, value in items(node, reading.name)}
            if node is not None
            else {}
        )
        reading.sections.append(self)

    def __contains__(self, key: str) -> bool:
        return key in self._found

    def left(self) -> Iterator[tuple[ScalarNode, Node]]:
        yield from self._found.values()

    def take(self, key: str) -> Node | None:
        """Return the value of a key and mark it as read; None without a value."""
        _, value = self._found.pop(key, (None, None))
        return None if value is None or is_empty(value) else value

    def section(self, key: str) -> "Section":
        return Section(self.reading, self.take(key), f"{self.path}{key}.", self.at)

    def sections(self, key: str) -> list["Section"]:
        return [
            Section(self.reading, node, f"{self.path}{key}[{place}].", self.at)
            for place, node in enumerate(self.nodes(key))
        ]

    def nodes(self, key: str) -> list[Node]:
        node = self.take(key)
        if node is not None and not isinstance(node, SequenceNode):
            raise self.reading.fault(node, f"'{self.path}{key}' must be a list, not {what(node)}")
        return list(node.value) if node is not None else []

    def texts(self, key: str) -> list[str]:
        return [self._text(f"{key}[{place}]", node) for place, node in enumerate(self.nodes(key))]

    def text(self, key: str) -> str:
        node = self.take(key)
        return "" if node is None else self._text(key, node)

    def number(self, key: str, default: int) -> int:
        node = self.take(key)
        if node is None:
            return default
        text = self._text(key, node)
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise self.reading.fault(
                node, f"'{self.path}{key}' must be a whole number, not {what(node)}"
            )
        return int(text)

    def quantity(self, key: str) -> Fraction | None:
        """Return a quantity such as `500m`, `2` or `16Gi`."""
        node = self.take(key)
        if node is None:
            return None
        size = quantity_of(self._text(key, node))
        if size is None:
            raise self.reading.fault(
                node,
                f"'{self.path}{key}' must be a quantity such as 2, 500m or 16Gi, not {what(node)}",
            )
        return size

    def pairs(self) -> list[tuple[str, str, Node]]:
        """Return all entries as (key, string, node)."""
        return [
            (key, self._text(key, value), value)
            for key in list(self._found)
            if (value := self.take(key)) is not None
        ]

    def _text(self, key: str, node: Node) -> str:
        if not isinstance(node, ScalarNode):
            raise self.reading.fault(node, f"'{self.path}{key}' must be a string, not {what(node)}")
        return str(node.value)
