"""Counts the steps of a backtracking regular expression, so that a test can hold its growth without
a clock.

A small matcher over the parse tree of Python's own `re`. It tries what `re` tries, in the same
order, and counts every character and every position that it looks at. tests/unit/test_patterns.py
holds that it finds the same matches as `re`.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any, Final

# The parse tree is no public interface of Python, and the only exact one.
c: Any = importlib.import_module("re._constants")
parser: Any = importlib.import_module("re._parser")

Next = Callable[[int], int]
NO: Final = -1
WORD: Final = re.compile(r"\w")
CATEGORIES: Final[dict[Any, Callable[[str], bool]]] = {
    c.CATEGORY_DIGIT: str.isdecimal,
    c.CATEGORY_NOT_DIGIT: lambda char: not char.isdecimal(),
    c.CATEGORY_SPACE: str.isspace,
    c.CATEGORY_NOT_SPACE: lambda char: not char.isspace(),
    c.CATEGORY_WORD: lambda char: WORD.match(char) is not None,
    c.CATEGORY_NOT_WORD: lambda char: WORD.match(char) is None,
}
SINGLE: Final = (c.LITERAL, c.NOT_LITERAL, c.ANY, c.IN)


class Steps:
    """One pattern on one text. `count` grows with every step."""

    def __init__(self, pattern: re.Pattern[Any], text: str) -> None:
        source = (
            pattern.pattern
            if isinstance(pattern.pattern, str)
            else pattern.pattern.decode("latin-1")
        )
        parsed = parser.parse(source, pattern.flags & ~re.UNICODE)
        self.tree: list[Any] = list(parsed)
        self.flags = pattern.flags
        self.text = text
        self.count = 0
        self.known: dict[tuple[int, str], bool] = {}

    def match(self, at: int, whole: bool = False) -> int:
        """The end of the match that begins at `at`, or NO."""
        return self._sequence(self.tree, 0, at, self._at_end if whole else lambda end: end)

    def search_all(self) -> list[tuple[int, int]]:
        """Return the matches that `finditer` finds, each with its beginning and end."""
        found, at = [], 0
        while at <= len(self.text):
            end = self.match(at)
            if end != NO:
                found.append((at, end))
            at = end if end > at else at + 1
        return found

    def _at_end(self, at: int) -> int:
        return at if at == len(self.text) else NO

    def _sequence(self, nodes: list[Any], place: int, at: int, following: Next) -> int:
        if place == len(nodes):
            return following(at)
        return self._node(
            nodes[place], at, lambda end: self._sequence(nodes, place + 1, end, following)
        )

    def _node(self, node: Any, at: int, following: Next) -> int:
        kind, value = node
        self.count += 1
        if kind in SINGLE:
            return following(at + 1) if self._char(node, at) else NO
        if kind is c.AT:
            return following(at) if self._position(value, at) else NO
        if kind is c.SUBPATTERN:
            return self._sequence(list(value[3]), 0, at, following)
        if kind is c.BRANCH:
            ends = (self._sequence(list(each), 0, at, following) for each in value[1])
            return next((end for end in ends if end != NO), NO)
        if kind is c.ATOMIC_GROUP:
            end = self._sequence(list(value), 0, at, lambda end: end)
            return following(end) if end != NO else NO
        if kind in (c.ASSERT, c.ASSERT_NOT):
            return following(at) if self._looks(value, at) == (kind is c.ASSERT) else NO
        return self._repeat(kind, value, at, following)

    def _looks(self, value: Any, at: int) -> bool:
        """A lookbehind has one character here."""
        direction, nodes = value
        start = at if direction > 0 else at - 1
        return start >= 0 and self._sequence(list(nodes), 0, start, lambda end: end) != NO

    def _repeat(self, kind: Any, value: Any, at: int, following: Next) -> int:
        low, high, nodes = value
        inner = list(nodes)
        if len(inner) == 1 and inner[0][0] in SINGLE:
            return self._repeat_char(
                kind=kind, bounds=(low, high), node=inner[0], at=at, following=following
            )
        if kind is c.POSSESSIVE_REPEAT:
            return self._possessive((low, high), inner, at, following)
        return self._repeat_group(
            kind=kind, bounds=(low, high), inner=inner, at=at, following=following
        )

    def _repeat_char(
        self, kind: Any, bounds: tuple[int, int], node: Any, at: int, following: Next
    ) -> int:
        low, high = bounds
        end = at
        if kind is c.MIN_REPEAT:
            while end - at < low or (result := following(end)) == NO:
                self.count += 1
                if end - at >= high or not self._char(node, end):
                    return NO
                end += 1
            return result
        while end - at < high and self._char(node, end):
            self.count += 1
            end += 1
        if end - at < low:
            return NO
        if kind is c.POSSESSIVE_REPEAT:
            return following(end)
        while end - at >= low:
            self.count += 1
            if (result := following(end)) != NO:
                return result
            end -= 1
        return NO

    def _possessive(
        self, bounds: tuple[int, int], inner: list[Any], at: int, following: Next
    ) -> int:
        times = 0
        while times < bounds[1] and (end := self._sequence(inner, 0, at, lambda end: end)) != NO:
            if end == at:
                break
            at, times = end, times + 1
        return following(at) if times >= bounds[0] else NO

    def _repeat_group(
        self, kind: Any, bounds: tuple[int, int], inner: list[Any], at: int, following: Next
    ) -> int:
        low, high = bounds

        def again(end: int, times: int) -> int:
            if times >= high:
                return NO
            return self._sequence(
                inner,
                0,
                end,
                lambda then: tried(then, times + 1) if then > end or times < low else NO,
            )

        def tried(end: int, times: int) -> int:
            if kind is c.MIN_REPEAT:
                result = following(end) if times >= low else NO
                return result if result != NO else again(end, times)
            result = again(end, times)
            return result if result != NO or times < low else following(end)

        return tried(at, 0)

    def _char(self, node: Any, at: int) -> bool:
        if at >= len(self.text):
            return False
        char = self.text[at]
        known = self.known.get((id(node), char))
        if known is None:
            chars = (char, char.lower(), char.upper()) if self.flags & re.IGNORECASE else (char,)
            known = self.known[(id(node), char)] = any(self._is(node, each) for each in chars)
        return known

    def _is(self, node: Any, char: str) -> bool:
        kind, value = node
        if kind is c.LITERAL:
            return ord(char[0]) == value
        if kind is c.NOT_LITERAL:
            return ord(char[0]) != value
        if kind is c.ANY:
            return char != "\n" or bool(self.flags & re.DOTALL)
        negated = value[0][0] is c.NEGATE
        return negated != any(self._in(each, char) for each in value)

    @staticmethod
    def _in(each: Any, char: str) -> bool:
        kind, value = each
        if kind is c.CATEGORY:
            return CATEGORIES[value](char)
        if kind is c.RANGE:
            return bool(value[0] <= ord(char[0]) <= value[1])
        return kind is c.LITERAL and ord(char[0]) == value

    def _position(self, where: Any, at: int) -> bool:
        text = self.text
        if where in (c.AT_BEGINNING, c.AT_BEGINNING_STRING):
            return at == 0
        if where is c.AT_END:
            return at == len(text) or (at == len(text) - 1 and text[at] == "\n")
        if where is c.AT_END_STRING:
            return at == len(text)
        before = at > 0 and WORD.match(text[at - 1]) is not None
        after = at < len(text) and WORD.match(text[at]) is not None
        return (before != after) == (where is c.AT_BOUNDARY)
