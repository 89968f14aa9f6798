"""Secrets written out where the log would keep them for ever: in the words of a command, in the values of variables.

Pure. It refuses only what is hardly anything else, for there is a way to give secrets (`--secret`); a reference to a variable is none.
Every pattern takes linear time: its repetitions give nothing back (`++`), and no two starts read the same text. tests/unit/test_patterns.py
counts the steps. What is recorded of an exec is hidden more freely (`libs/common/redaction.py`). Tests: tests/unit/test_plain_secrets.py.
"""

import re
from collections.abc import Iterable
from typing import Final

# A variable of this name holds a secret; `_TOKENS` or `TOKENIZER` does not.
SECRET_NAME: Final = re.compile(r"(?:^|_)(?:TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|ACCESS_KEY|PRIVATE_KEY)\Z", re.IGNORECASE)

_VALUE: Final = r"""["']?(?![$<{-])[^\s"']+"""
_SHAPES: Final = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----")),
    ("a token", re.compile(r"\b(?:hf_|gh[pousr]_|sk-(?:[a-z0-9]++-){0,2})[A-Za-z0-9]{20}")),
    ("a key of Muster", re.compile(r"\b(?:mk_|msk_[a-z0-9]++_)[A-Za-z0-9_-]{40}")),
    # A JSON web token. Only the first `eyJ` of a run of its letters can begin one.
    (
        "a token",
        re.compile(r"(?<![A-Za-z0-9_-])(?>[A-Za-z0-9_-]*?\beyJ)[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]"),
    ),
    (
        "a password in an address",
        re.compile(r"(?<=[a-z0-9+.-])://[^\s:/@]*+:(?!\$)[^\s/@]++@", re.IGNORECASE),
    ),
    ("a bearer's token", re.compile(rf"(?i)\bauthorization: *+(?:bearer|basic) ++{_VALUE}")),
)
# Of the many `--...-token` only those that name a key: `--eos-token` is a word of a language.
_FLAG: Final = re.compile(
    r"(?<!\S)(--?(?:password|passwd|token|api[_-]?key|(?:hf|auth|access|api|refresh)[_-]token|client[_-]secret|secret[_-]key))"
    rf"(?:=|\s++){_VALUE}",
    re.IGNORECASE,
)
_ASSIGNMENT: Final = re.compile(rf"(?:^|[\s;&|('\"])([A-Z][A-Z0-9_]*+)={_VALUE}")


def in_text(text: str) -> str:
    """What in it looks like a secret, in words that do not quote it; empty when nothing does."""
    for what, shape in _SHAPES:
        if shape.search(text):
            return what
    return ""


def in_command(words: Iterable[str]) -> str:
    """Likewise of a command line, flags and assignments included."""
    text = " ".join(words)
    if what := in_text(text):
        return what
    if flag := _FLAG.search(text):
        return f"the value of {flag[1]}"
    names = (found[1] for found in _ASSIGNMENT.finditer(text) if SECRET_NAME.search(found[1]))
    return next((f"the value of {name}" for name in names), "")
