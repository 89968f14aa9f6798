"""Takes secrets out of text that leaves the cluster: exactly those that are known here, and whatever looks like one.

Pure. Known secrets are replaced wherever they stand; a pattern only ever hides too much. Tests: tests/unit/test_redaction.py.
"""

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[hidden]"
# Shorter texts are no secrets, and would be found everywhere.
SECRET_CHARS_MIN: Final = 8

_PRIVATE_KEY: Final = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL)
_API_KEY: Final = re.compile(r"\b(?:mk|msk|sk|hf|ghp|glpat|xox[a-z])[_-][A-Za-z0-9_-]{8,}")
_NKEY_SEED: Final = re.compile(r"\bS[UAOCNX][A-Z2-7]{54,58}\b")
_JWT: Final = re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*")
_AWS: Final = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b")
_BEARER: Final = re.compile(r"(?i)\b(bearer|basic)(\s+)[A-Za-z0-9._~+/=-]{8,}")
_IN_ADDRESS: Final = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*:)[^\s/@]+(@)", re.IGNORECASE)
# PASSWORD=x, "api_key": "x", db_token: x; the quoted value may hold anything but its quote.
_ASSIGNED: Final = re.compile(
    r"(?i)([\w.-]*(?:passw(?:or)?d|passwd|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w.-]*[\"']?\s*[=:]\s*)"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s,;}\]]+)"
)
# --password x, --hf-token "x", and the x of curl's -u name:x.
_FLAG: Final = re.compile(
    r"(?i)((?:^|\s)--?[\w-]*(?:passw(?:or)?d|passwd|secret|token|credential|api[_-]?key|access[_-]?key|private[_-]?key)[\w-]*\s+)"
    r"(\"(?:[^\"\\]|\\.)*\"|'[^']*'|[^\s-]\S*)"
)
_USER: Final = re.compile(r"((?:^|\s)(?:-u|--user|--proxy-user)[\s=]*[\"']?[^\s:\"'-][^\s:\"']*:)[^\s\"']+")


def redacted(text: str, known: Iterable[str] = ()) -> str:
    """`text` without the `known` secrets and without what looks like one."""
    for secret in sorted({each.strip() for each in known}, key=lambda each: (-len(each), each)):
        if len(secret) >= SECRET_CHARS_MIN:
            text = text.replace(secret, HIDDEN)
    for pattern in (_PRIVATE_KEY, _JWT, _API_KEY, _NKEY_SEED, _AWS):
        text = pattern.sub(HIDDEN, text)
    text = _BEARER.sub(rf"\1\2{HIDDEN}", text)
    text = _IN_ADDRESS.sub(rf"\1{HIDDEN}\2", text)
    for pattern in (_ASSIGNED, _FLAG, _USER):
        text = pattern.sub(rf"\1{HIDDEN}", text)
    return text
