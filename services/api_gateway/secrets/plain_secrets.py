"""Searches commands and environment values for secrets in plain text, which the log would keep for
ever.

Pure. The search matches only what is almost certainly a secret. A reference to a variable is not
one; `--secret` is the way to give a job a secret. RE2 matches in linear time without backtracking,
so no text of a request can block a gateway. The record of an exec is redacted more broadly
(`libs/common/safety/redaction.py`). Tests: tests/unit/test_plain_secrets.py.
"""

from collections.abc import Iterable
from typing import Final

import re2

_NAMES: Final = "TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY"
# The name of a variable that holds a secret; `_TOKENS` or `TOKENIZER` does not match.
SECRET_NAME: Final = re2.compile(rf"(?i)(?:^|_)(?:{_NAMES})$")

# Every kind of white space that a user may paste; RE2's own class has only that of ASCII.
_SPACE: Final = r"\s\v\x1c-\x1f\x{85}\pZ"
# The first character of a value. Variable references, placeholders and flags are not values.
_VALUE: Final = rf"""["']?[^{_SPACE}"'$<{{-]"""
_SHAPES: Final = (
    ("a private key", re2.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a token", re2.compile(r"\b(?:hf_|gh[pousr]_|sk-(?:[a-z0-9]+-){0,2})[A-Za-z0-9]{20}")),
    ("a key of Muster", re2.compile(r"\b(?:mk_|msk_[a-z0-9]+_)[A-Za-z0-9_-]{40}")),
    # A JSON web token.
    ("a token", re2.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]")),
    ("a password in an address", re2.compile(r"(?i)[a-z0-9+.-]://[^\s:/@]*:[^\s/@$][^\s/@]*@")),
    ("a bearer's token", re2.compile(rf"(?i)\bauthorization: *(?:bearer|basic) +{_VALUE}")),
)
# Only those `--...-token` flags that take a key: `--eos-token` is a word of a language.
_KEYS: Final = (
    r"password|passwd|token|api[_-]?key|(?:hf|auth|access|api|refresh)[_-]token"
    r"|client[_-]secret|secret[_-]key"
)
_FLAG: Final = re2.compile(rf"(?i)(?:^|[{_SPACE}])(--?(?:{_KEYS}))(?:=|[{_SPACE}]+){_VALUE}")
_ASSIGNMENT: Final = re2.compile(
    rf"(?:^|[{_SPACE};&|('\"])((?:[A-Z][A-Z0-9_]*_)?(?:{_NAMES}))={_VALUE}"
)

# Nearly every text matches nothing; one search finds that out.
_ANY: Final = re2.compile(
    "|".join(
        f"(?:{each.pattern})" for each in (*(shape for _, shape in _SHAPES), _FLAG, _ASSIGNMENT)
    )
)


def in_text(text: str) -> str:
    """Return what looks like a secret in the text, without quoting it; empty if nothing does."""
    if not _ANY.search(text):
        return ""
    return next((what for what, shape in _SHAPES if shape.search(text)), "")


def in_command(words: Iterable[str]) -> str:
    """Return what looks like a secret in a command, including its flags and assignments."""
    text = " ".join(words)
    if not _ANY.search(text):
        return ""
    if what := in_text(text):
        return what
    found = _FLAG.search(text) or _ASSIGNMENT.search(text)
    return f"the value of {found[1]}" if found else ""
