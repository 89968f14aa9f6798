"""Requests to a hub, in the protocol of the Hugging Face Hub.

The hub is not trusted: answers have bounds in bytes and in time, redirects lead to http(s) only and
never from https to http, and the token goes to the hub's own origin alone. Tests:
tests/integration/test_pull_program.py, tests/attack/test_hostile_hub.py.
"""

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any, Final
from urllib.parse import quote, urljoin, urlsplit

from libs.job.pulling.errors import Broken, PullError
from libs.job.pulling.listing import FILES_MAX, Listed, commit_of, files_of

# Silence of the hub after which a request is sent again.
SILENCE_S: Final = 30.0
# Time and bytes of one JSON answer, and the number of pages and bytes of a list.
JSON_S: Final = 120.0
JSON_BYTES_MAX: Final = 32 << 20
PAGES_MAX: Final = 200
LIST_BYTES_MAX: Final = 64 << 20
REDIRECTS_MAX: Final = 5
READ_BYTES: Final = 1 << 20
TEXT_MAX: Final = 200
TEMPORARY: Final = (408, 416, 425, 429, 500, 502, 503, 504)


class Body:
    """The content of a file from the byte `start` on."""

    def __init__(self, response: http.client.HTTPResponse, start: int) -> None:
        self.response, self.start = response, start

    def read(self) -> bytes:
        """Return the next bytes; none at the end. Raises Broken."""
        try:
            return self.response.read1(READ_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise Broken(f"the hub broke off: {_why(error)}") from error


class Hub:
    """One hub. `token` is sent to its own origin alone."""

    def __init__(self, url: str, token: str = "", silence_s: float = SILENCE_S) -> None:  # nosec B107
        if not _is_address(url):
            shown = url.rpartition("@")[2][:TEXT_MAX]  # without a password
            raise PullError(
                f"the hub's address {shown!r} is not valid: give http(s)://HOST[:PORT] without a "
                "user and a password"
            )
        if not token.isascii() or not token.isprintable():
            raise PullError("the token is not valid: it must be printable ASCII in one line")
        self.url, self.token, self.silence_s = url.rstrip("/"), token, silence_s
        self.opener = urllib.request.build_opener(_Redirects(self))

    def commit(self, repository: str, revision: str) -> str:
        """Return the commit of a revision. Raises PullError."""
        where = f"/api/models/{quote(repository)}/revision/{quote(revision, safe='')}"
        return commit_of(self._json(self.url + where)[0], revision)

    def files(self, repository: str, commit: str) -> list[Listed]:
        """Return all files of a commit. Raises PullError."""
        entries: list[object] = []
        left_bytes = LIST_BYTES_MAX
        following = f"{self.url}/api/models/{quote(repository)}/tree/{commit}?recursive=true"
        for _ in range(PAGES_MAX):
            page, following, size = self._json(following)
            if (left_bytes := left_bytes - size) < 0:
                raise PullError(
                    f"{self.url} lists {repository} in more than {LIST_BYTES_MAX} bytes"
                )
            if not isinstance(page, list):
                raise PullError(f"{self.url} answers no list of files for {repository}")
            entries += page
            if not following or len(entries) > 2 * FILES_MAX:
                return files_of(entries)
        raise PullError(f"{self.url} lists {repository} on more than {PAGES_MAX} pages")

    @contextmanager
    def opened(self, repository: str, commit: str, path: str, offset: int) -> Iterator[Body]:
        """Open a file from `offset` on, or from its beginning if the hub does so.

        Raises PullError.
        """
        url = f"{self.url}/{quote(repository)}/resolve/{commit}/{quote(path)}"
        with self._answer(url, {"Range": f"bytes={offset}-"} if offset else {}) as response:
            kind = response.headers.get("Content-Type", "")
            if kind.startswith("text/html") and not path.endswith((".html", ".htm")):
                raise PullError(
                    f"{self.url} answers a web page for {path[:TEXT_MAX]}: check that it is the "
                    "address of a hub (MUSTER_HUB, --hub), and proxies on the way"
                )
            yield Body(response, offset if _continues(response, offset) else 0)

    @contextmanager
    def _answer(self, url: str, headers: dict[str, str]) -> Iterator[http.client.HTTPResponse]:
        request = urllib.request.Request(url, headers={"Accept-Encoding": "identity", **headers})
        request.add_header("User-Agent", "muster-pull")
        self.sign(request)
        try:
            response = self.opener.open(request, timeout=self.silence_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from error
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise Broken(f"{self.url} does not answer: {_why(reason)}") from error
        with response:
            yield response

    def sign(self, request: urllib.request.Request) -> None:
        """Add the token to a request of the hub's own origin."""
        if self.token and origin(request.full_url) == origin(self.url):
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")

    def _refusal(self, error: urllib.error.HTTPError) -> PullError:
        what = f"{self.url} answers {error.code} for {urlsplit(error.url).path[:TEXT_MAX]}"
        if error.code in TEMPORARY:
            return Broken(what)
        if error.code in (401, 403):
            given = "this token may not read it" if self.token else "no token was given"
            return PullError(
                f"{what}: the repository is private, gated or does not exist, and {given}. Set a "
                "token with muster secret set NAME, and pull with --secret NAME"
            )
        if error.code == 404:
            return PullError(f"{what}: check the repository, the revision and the hub's address")
        return PullError(what)

    def _json(self, url: str) -> tuple[Any, str, int]:
        """Return a JSON answer, the address of the next page if there is one, and the bytes."""
        with self._answer(url, {"Accept": "application/json"}) as response:
            data = _bounded(response, self.url)
            link = response.headers.get("Link", "")
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            kind = response.headers.get("Content-Type", "")[:TEXT_MAX]
            raise PullError(
                f"{self.url} answers {kind or 'something'} that is not JSON: check that it is the "
                "address of a hub (MUSTER_HUB, --hub)"
            ) from error
        following = _next_of(link, url)
        if following and not (_is_address(following) and origin(following) == origin(self.url)):
            raise PullError(f"{self.url} names a next page at another host: {following[:TEXT_MAX]}")
        return value, following, len(data)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows few redirects, and sends the token to the hub's own origin alone."""

    max_redirections = REDIRECTS_MAX

    def __init__(self, hub: Hub) -> None:
        self.hub = hub

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        target = urlsplit(newurl)
        is_weaker = req.type == "https" and target.scheme != "https"
        if target.scheme not in ("http", "https") or is_weaker:
            raise PullError(f"{self.hub.url} redirects to {newurl[:TEXT_MAX]!r}: this is refused")
        made = super().redirect_request(req, fp, code, msg, headers, newurl)
        if made is not None:
            self.hub.sign(made)
        return made


def origin(url: str) -> tuple[str, str, int]:
    """Return scheme, host and port of an address."""
    parts = urlsplit(url)
    return (
        parts.scheme,
        parts.hostname or "",
        parts.port or (443 if parts.scheme == "https" else 80),
    )


def _is_address(url: str) -> bool:
    """Return whether a text is the address of a server, without a user and a password."""
    try:
        parts = urlsplit(url)
        is_web = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:  # for example a port that is not a number
        return False
    return is_web and bool(parts.hostname) and "@" not in parts.netloc


def _continues(response: http.client.HTTPResponse, offset: int) -> bool:
    """Return whether an answer begins at the offset that was asked for. Raises PullError."""
    if not offset or response.status != 206:
        return False
    if not response.headers.get("Content-Range", "").startswith(f"bytes {offset}-"):
        raise Broken("the hub answers another part of the file than was asked for")
    return True


def _bounded(response: http.client.HTTPResponse, url: str) -> bytes:
    until, data = time.monotonic() + JSON_S, bytearray()
    try:
        while piece := response.read1(READ_BYTES):
            data += piece
            if len(data) > JSON_BYTES_MAX:
                raise PullError(f"{url} answers more than {JSON_BYTES_MAX} bytes of JSON")
            if time.monotonic() > until:
                raise Broken(f"{url} took more than {JSON_S:.0f} s for one answer")
    except (OSError, http.client.HTTPException) as error:
        raise Broken(f"{url} broke off its answer: {_why(error)}") from error
    return bytes(data)


def _next_of(link: str, url: str) -> str:
    for part in link.split(","):
        target, _, relation = part.partition(";")
        if 'rel="next"' in relation and target.strip().startswith("<"):
            target = target.strip()[1:].rstrip(">")
            try:
                return urljoin(url, target)
            except ValueError:
                return target
    return ""


def _why(error: object) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error)[:TEXT_MAX] or type(error).__name__
