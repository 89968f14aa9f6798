"""Every regular expression of the project takes linear time: its steps are counted, no clock is
read.

A hostile text is a piece of the pattern's own letters repeated many times. Twice the text may cost
about twice the steps. A pattern that is not linear (`a+b` searched in `aaaa...`) costs four times
as many. RE2's patterns (`plain_secrets.py`) are linear by construction and are not counted here.
"""

import ast
import importlib
import re
import sys
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from libs.common.safety import redaction
from tests.steps import SINGLE, Steps, c, parser

pytestmark = pytest.mark.attack

ROOT: Final = Path(__file__).parents[2]
GROWTH_MAX: Final = 2.4
TEXT_CHARS: Final = 80
PIECES_MAX: Final = 6
LETTERS: Final = ("a", "A", "-", "=", "0", " ", *map(chr, range(128)))
LETTERS_MAX: Final = 3
# Patterns of command lines and of files of the one who runs them; no request reaches them.
OF_THE_USER: Final = ("libs/cli/", "libs/doctor/")
SEARCHING: Final = ("search", "finditer", "findall", "sub", "subn", "split")
# Its patterns are arguments of functions that search for them.
ALL_SEARCHED: Final = (redaction.__name__,)


class Found(NamedTuple):
    """A compiled pattern.

    `searched`: a match may begin anywhere, else only at the text's beginning.
    """

    pattern: re.Pattern[Any]
    searched: bool


@pytest.fixture(autouse=True)
def deep() -> Iterator[None]:
    """The counting matcher calls itself once for each character of a nested repetition."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    yield
    sys.setrecursionlimit(before)


def patterns() -> dict[str, Found]:
    """Each compiled pattern of libs and services that stands in a module, by its module, name and
    place.
    """
    files = [
        path.relative_to(ROOT)
        for top in ("libs", "services")
        for path in sorted((ROOT / top).rglob("*.py"))
    ]
    found: dict[str, Found] = {}
    for path in files:
        text = (ROOT / path).read_text()
        if "re.compile(" in text and not str(path).startswith(OF_THE_USER):
            found |= _in(".".join(path.with_suffix("").parts), ast.parse(text))
    return found


def _in(module: str, tree: ast.Module) -> Iterator[tuple[str, Found]]:
    calls = [
        node.func
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    ]
    searched = {
        call.value.id
        for call in calls
        if isinstance(call.value, ast.Name) and call.attr in SEARCHING
    }
    for name, value in vars(importlib.import_module(module)).items():
        values = value if isinstance(value, tuple | list) else (value,)
        flat = [each for one in values for each in (one if isinstance(one, tuple) else (one,))]
        for place, each in enumerate(flat):
            if isinstance(each, re.Pattern):
                yield (
                    f"{module}.{name}.{place}",
                    Found(each, name in searched or module in ALL_SEARCHED),
                )


def pieces(pattern: re.Pattern[Any]) -> tuple[list[str], list[str]]:
    """The literal words of the pattern, and letters of its classes, each as often as its repetition
    needs at least.
    """
    source = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    words: list[str] = []
    letters: list[str] = []
    _collect(list(parser.parse(source, pattern.flags & ~re.UNICODE)), 1, words, letters)
    return list(dict.fromkeys(words))[:PIECES_MAX], list(dict.fromkeys([*letters, "a"]))[
        :PIECES_MAX
    ]


def _collect(nodes: list[Any], times: int, words: list[str], letters: list[str]) -> None:
    word = ""
    for kind, value in [*nodes, (None, None)]:
        if kind is c.LITERAL:
            word += chr(value)
            continue
        if word:
            words.append(word)
            word = ""
        if kind in SINGLE:
            known = [
                char for char in LETTERS if Steps(re.compile("."), char)._is((kind, value), char)
            ]
            letters += [char * max(1, times) for char in known[:LETTERS_MAX]]
        elif kind is c.BRANCH:
            for each in value[1]:
                _collect(list(each), times, words, letters)
        elif kind in (c.SUBPATTERN, c.ATOMIC_GROUP):
            _collect(list(value[3] if kind is c.SUBPATTERN else value), times, words, letters)
        elif kind in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            _collect(list(value[2]), min(value[0], 8), words, letters)


def attacks(pattern: re.Pattern[Any]) -> list[tuple[str, str]]:
    """Return the text that stands first, and the text that is repeated."""
    words, letters = pieces(pattern)
    known = [*words, *letters]
    pairs = ["".join(each) for each in product(known, repeat=2)]
    triples = ["".join(each) for each in product(words[:3], letters[:4], letters[:4])]
    pumped = dict.fromkeys(["".join(known), *known, *triples, *pairs])
    return list(product(dict.fromkeys(["", *words[:2], "".join(words[:2])]), pumped))


def steps(found: Found, text: str) -> int:
    counted = Steps(found.pattern, text)
    if found.searched:
        counted.search_all()
    else:
        counted.match(0, whole=True)
    return counted.count


def growth(found: Found, first: str, pumped: str) -> float:
    """Return the factor by which the steps grow when the text is twice as long."""
    times = max(3, TEXT_CHARS // len(pumped))
    small, large = (steps(found, first + pumped * times * factor + "\0") for factor in (1, 2))
    return large / small


def worst(found: Found) -> tuple[float, str, str]:
    """The first attack that costs too much, else the one that costs most."""
    most = (0.0, "", "")
    for first, pumped in attacks(found.pattern):
        most = max(most, (growth(found, first, pumped), first, pumped))
        if most[0] > GROWTH_MAX:
            return most
    return most


PATTERNS: Final = patterns()


@pytest.mark.parametrize("name", PATTERNS)
def test_twice_the_text_costs_a_pattern_twice_the_steps(name: str) -> None:
    found, first, pumped = worst(PATTERNS[name])
    assert found <= GROWTH_MAX, f"{PATTERNS[name].pattern!r}: {first!r}, then {pumped!r} many times"


@pytest.mark.parametrize(
    "pattern",
    [
        r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+",
        r"\b[a-z][a-z0-9+.-]*://[^\s:/@]*:(?!\$)[^\s/@]+@",
        r"([\w.-]*token[\w.-]*[\"']?\s*[=:]\s*)\w",
        r"((?:^|\s)(?:-u|--user)[\s=]*[\"']?[^\s:\"'-][^\s:\"']*:)[^\s\"']+",
    ],
)
def test_a_pattern_that_froze_a_gateway_is_found(pattern: str) -> None:
    assert worst(Found(re.compile(pattern), searched=True))[0] > GROWTH_MAX


@pytest.mark.parametrize("name", PATTERNS)
def test_the_steps_are_those_of_the_same_matches(name: str) -> None:
    """Holds the counting matcher against `re`."""
    pattern = PATTERNS[name].pattern
    for first, pumped in attacks(pattern)[::3]:
        text = first + pumped * 2 + "!"
        given = text if isinstance(pattern.pattern, str) else text.encode("latin-1", "replace")
        assert Steps(pattern, text).search_all() == [
            each.span() for each in pattern.finditer(given)
        ]


# A line of the kernel's log, a number's first letter and a value after its name are read at their
# beginning, not whole.
READ_AT_THEIR_BEGINNING: Final = (
    "services/api_gateway/http/app.py",
    "libs/common/safety/redaction.py",
    "services/node_agent/health/kernel_lines.py",
    "services/api_gateway/openai/request.py",
    "libs/client/errors.py",
    "services/node_agent/diagnosis/stacks.py",
)


@pytest.mark.parametrize("name", PATTERNS)
def test_no_pattern_ends_before_a_newline(name: str) -> None:
    """`$` matches before a last newline: names are held by `fullmatch`, an end by `\\Z`."""
    pattern = PATTERNS[name].pattern
    source = (
        pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    )
    assert not source.replace(r"\$", "").endswith("$"), source


def test_a_name_is_matched_whole() -> None:
    found = []
    for path in sorted(path for top in ("libs", "services") for path in (ROOT / top).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        if name.startswith(OF_THE_USER) or name in READ_AT_THEIR_BEGINNING:
            continue
        calls = [
            node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)
        ]
        found += [
            f"{name}:{call.lineno}"
            for call in calls
            if isinstance(call.func, ast.Attribute) and call.func.attr == "match"
        ]
    assert found == []
