"""Removes secrets from text that leaves the cluster: known ones, and text that looks like one.

Pure. Known secrets are replaced wherever they occur; patterns may hide too much. Every pattern
takes linear time: its repetitions are possessive (`++`), and no two starts read the same text.
tests/unit/test_patterns.py counts the steps. Tests: tests/unit/test_redaction.py.
"""

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[hidden]"
# Shorter texts are not treated as secrets: they would match everywhere.
SECRET_CHARS_MIN: Final = 8

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_API_KEY: Final = re.compile(r"\b(?:mk|msk|sk|hf|ghp|glpat|xox[a-z])[_-][A-Za-z0-9_-]{8,}+")
_NKEY_SEED: Final = re.compile(r"\bS[UAOCNX][A-Z2-7]{54,58}\b")
# Only the first `eyJ` of a run of these letters can begin a JSON web token.
_JWT: Final = re.compile(
    r"(?<![A-Za-z0-9_-])((?>[A-Za-z0-9_-]*?\b(?=eyJ)))eyJ[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]++\.[A-Za-z0-9_-]*+"
)
_AWS: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s++)[A-Za-z0-9._~+/=-]{8,}+")
_IN_ADDRESS: Final = re.compile(r"(?<=[a-z0-9+.-])(://[^\s:/@]*+:)[^\s/@]++(@)", re.IGNORECASE)
_USER: Final = re.compile(
    r"((?<!\S)(?:-u|--user|--proxy-user)[\s=]*+[\"']?[^\s:\"'=-][^\s:\"']*+:)[^\s\"']++"
)
# A name that contains one of these belongs to a secret.
_SECRET: Final = re.compile(
    r"passw(?:or)?d|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key",
    re.IGNORECASE,
)
# A quoted value may hold anything but its quote. A quote that is never closed hides the rest of the
# text.
_QUOTED: Final = r"\"(?:[^\"\\]++|\\.)*+\\?(?:\"|\Z)|'[^']*+(?:'|\Z)"
# PASSWORD=x, "api_key": "x", db_token: x.
_NAME: Final = re.compile(r"(?<![\w.-])([\w.-]++)[\"']?\s*+[=:]\s*+")
_VALUE: Final = re.compile(rf"{_QUOTED}|[^\s,;}}\]]++", re.DOTALL)
# --password x, --hf-token "x".
_FLAG: Final = re.compile(r"(?<!\S)(-[\w-]++)\s++")
_ARGUMENT: Final = re.compile(rf"{_QUOTED}|[^\s-]\S*+", re.DOTALL)


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """Return `text` without the `known` secrets and without text that looks like a secret."""
    for secret in sorted({each.strip() for each in known}, key=lambda each: (-len(each), each)):
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, HIDDEN)
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _JWT.sub(rf"\1{HIDDEN}", text)
    for pattern in (_API_KEY, _NKEY_SEED, _AWS):
        text = pattern.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    text = _IN_ADDRESS.sub(rf"\1{HIDDEN}\2", text)
    text = _hide_values(text, _NAME, _VALUE)
    text = _hide_values(text, _FLAG, _ARGUMENT)
    return _USER.sub(rf"\1{HIDDEN}", text)


def _hide_values(text: str, names: re.Pattern[str], value: re.Pattern[str]) -> str:
    """Hide the value that follows each secret's name.

    `names` matches a name and its separator.
    """
    pieces = []
    done = 0
    for name in names.finditer(text):
        if name.start() < done or _SECRET.search(name[1]) is None:
            continue
        found = value.match(text, name.end())
        if found is not None:
            pieces += [text[done : name.end()], HIDDEN]
            done = found.end()
    return "".join([*pieces, text[done:]])
