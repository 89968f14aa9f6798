"""The dashboard's files, read once at the start, with what browsers need to keep and to trust them.

All files except the page itself are under a path with the digest of all files, so browsers may keep
them for ever. Browsers request the page each time, and it names that path. Its content security
policy allows scripts and styles of the own origin alone, and its import map by its hash. Tests:
tests/unit/test_dashboard_files.py.
"""

import gzip
import re
from base64 import b64encode
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

STATIC: Final = Path(__file__).with_name("static")
PAGE: Final = "index.html"
# In the page: replaced by the digest of all files.
DIGEST: Final = b"DIGEST"
DIGEST_LENGTH: Final = 16
MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
IMPORT_MAP: Final = re.compile(rb'<script type="importmap">([^<]*)</script>')
FOR_EVER: Final = "public, max-age=31536000, immutable"
ASK_AGAIN: Final = "no-cache"
# Files shorter than this gain nothing from compression.
GZIP_FROM_BYTES: Final = 512
SECURITY: Final = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}


class StaticFile(NamedTuple):
    """One file as it is sent: plain, and compressed if that is shorter."""

    media_type: str
    data: bytes
    gzipped: bytes | None
    etag: str


class Files:
    """All files of the dashboard by their path under `static/`, and the page's policy."""

    def __init__(self, folder: Path = STATIC) -> None:
        read = {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.suffix in MEDIA_TYPES
        }
        self.digest = _digest(read.items())
        page = read.pop(PAGE).replace(DIGEST, self.digest.encode())
        self.policy = policy_of(page)
        self.page = _file(PAGE, page)
        self.by_path = {path: _file(path, data) for path, data in read.items()}

    def cache_control(self, digest: str) -> str:
        """Return how long a browser may keep a file that it asked for under this digest.

        During an upgrade a page of another version asks for its own files here.
        """
        return FOR_EVER if digest == self.digest else ASK_AGAIN


@cache
def shipped() -> Files:
    """Return the files of this version; they are read and compressed once in a process."""
    return Files()


def policy_of(page: bytes) -> str:
    """Return the content security policy of the page."""
    found = IMPORT_MAP.search(page)
    assert found is not None, "the page has no import map"
    inline = b64encode(sha256(found.group(1)).digest()).decode()
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src 'self' 'sha256-{inline}'",
            "style-src 'self'",
            "img-src 'self'",
            "connect-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _digest(files: Iterable[tuple[str, bytes]]) -> str:
    whole = sha256()
    for path, data in files:
        whole.update(b"%s\0%d\0%s" % (path.encode(), len(data), data))
    return whole.hexdigest()[:DIGEST_LENGTH]


def _file(path: str, data: bytes) -> StaticFile:
    short = gzip.compress(data, mtime=0) if len(data) >= GZIP_FROM_BYTES else data
    return StaticFile(
        media_type=MEDIA_TYPES[Path(path).suffix],
        data=data,
        gzipped=short if len(short) < len(data) else None,
        etag=f'"{sha256(data).hexdigest()[:DIGEST_LENGTH]}"',
    )
