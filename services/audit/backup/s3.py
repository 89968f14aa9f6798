"""A prefix of a bucket in S3, or in a store with the same interface, as a place for backups.

The credentials come from the variables that S3 tools use: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY,
AWS_SESSION_TOKEN, AWS_REGION and AWS_ENDPOINT_URL. Each request is tried again while the store
answers with a fault of its own. Objects are at most one segment, so no upload has parts.
"""

import asyncio
import hashlib
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import urlsplit
from xml.etree import ElementTree  # nosec B405 - the store that holds the backup answers

import aiohttp
from yarl import URL

from libs.common.errors import Refused, Unavailable
from services.audit.backup.places import NAMES_MAX
from services.audit.backup.s3_signing import (
    Credentials,
    encoded_path,
    encoded_query,
    signed_headers,
)

REQUEST_S: Final = 120.0
TRIES: Final = 5
FIRST_PAUSE_S: Final = 0.5
AGAIN_FROM: Final = 500
ANSWER_BYTES_MAX: Final = 512 << 20
LIST_BYTES_MAX: Final = 8 << 20
NAMESPACE: Final = re.compile(r'\sxmlns="[^"]+"')


class S3Place:
    """The objects below one prefix. `endpoint` is the store's address, with the bucket in the
    path.
    """

    def __init__(
        self, endpoint: str, region: str, bucket: str, prefix: str, credentials: Credentials
    ) -> None:
        self.endpoint = endpoint.rstrip("/")
        self.host = urlsplit(endpoint).netloc
        self.region = region
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.credentials = credentials
        self.session: aiohttp.ClientSession | None = None

    async def put(self, name: str, data: bytes) -> None:
        await self._ask("PUT", self._path(name), {}, data)

    async def get(self, name: str) -> bytes | None:
        status, body = await self._ask("GET", self._path(name), {}, b"")
        return body if status == 200 else None

    async def delete(self, name: str) -> None:
        await self._ask("DELETE", self._path(name), {}, b"")

    async def old_names(self, folder: str, older_s: float) -> list[str]:
        before, mark = datetime.now(UTC) - timedelta(seconds=older_s), ""
        found: list[str] = []
        while len(found) < NAMES_MAX:
            query = {"list-type": "2", "prefix": f"{self.prefix}{folder}/"}
            if mark:
                query["continuation-token"] = mark
            _, body = await self._ask("GET", f"/{self.bucket}", query, b"")
            names, mark = _listed(body, before)
            found += [name.removeprefix(self.prefix) for name in names]
            if not mark:
                return found
        return found

    async def close(self) -> None:
        if self.session is not None:
            await self.session.close()

    def _path(self, name: str) -> str:
        return f"/{self.bucket}/{self.prefix}{name}"

    async def _ask(
        self, method: str, path: str, query: Mapping[str, str], data: bytes
    ) -> tuple[int, bytes]:
        """Return status and body; 404 is an answer.

        Raises Refused if the store refuses the request, Unavailable if it does not answer.
        """
        pause_s, fault = FIRST_PAUSE_S, ""
        for _ in range(TRIES):
            try:
                status, body = await self._once(method, path, query, data)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                fault = str(error) or "no answer in time"
            else:
                if status in (200, 204, 404):
                    return status, body
                fault = f"{status} {_reason(body)}"
                if status < AGAIN_FROM and status != 429:
                    raise Refused(
                        f"s3://{path[1:]}: the store refused {method} ({fault}): check the "
                        "bucket's name, AWS_REGION, and the rights of AWS_ACCESS_KEY_ID"
                    )
            await asyncio.sleep(pause_s)
            pause_s *= 2
        raise Unavailable(
            f"s3://{path[1:]}: the store did not answer {method} in {TRIES} tries ({fault}): check "
            f"that {self.endpoint} is reachable (AWS_ENDPOINT_URL), then repeat the command"
        )

    async def _once(
        self, method: str, path: str, query: Mapping[str, str], data: bytes
    ) -> tuple[int, bytes]:
        if self.session is None:
            timeout = aiohttp.ClientTimeout(total=REQUEST_S)
            self.session = aiohttp.ClientSession(timeout=timeout, auto_decompress=False)
        headers = signed_headers(
            credentials=self.credentials,
            region=self.region,
            method=method,
            host=self.host,
            path=path,
            query=query,
            body_sha256=hashlib.sha256(data).hexdigest(),
            stamp=datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ"),
        )
        query_text = f"?{encoded_query(query)}" if query else ""
        url = URL(f"{self.endpoint}{encoded_path(path)}{query_text}", encoded=True)
        async with self.session.request(
            method, url, data=data or None, headers=headers, allow_redirects=False
        ) as answer:
            bound = LIST_BYTES_MAX if query else ANSWER_BYTES_MAX
            length = int(answer.headers.get("Content-Length") or 0)
            if length > bound:
                raise Refused(f"s3://{path[1:]} has {length} bytes: it is no object of a backup")
            return answer.status, await answer.read()


def _listed(body: bytes, before: datetime) -> tuple[list[str], str]:
    """Return the names of a page that are older, and the mark of the next page; empty: none."""
    try:
        page = ElementTree.fromstring(NAMESPACE.sub("", body.decode(), count=1))  # nosec B314
        names = [
            each.findtext("Key", "")
            for each in page.iter("Contents")
            if datetime.fromisoformat(each.findtext("LastModified", "")) < before
        ]
    except (ElementTree.ParseError, ValueError, TypeError) as error:
        raise Unavailable(f"the store's list of objects cannot be read ({error})") from error
    return names, page.findtext("NextContinuationToken", "")


def _reason(body: bytes) -> str:
    found = re.search(rb"<Code>([^<]{1,100})</Code>", body)
    return found[1].decode(errors="replace") if found else ""


def s3_place(text: str, environ: Mapping[str, str]) -> S3Place:
    """Return the place of s3://bucket/prefix. Raises Refused without a bucket or credentials."""
    parts = urlsplit(text)
    access, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if not parts.netloc or parts.query or parts.fragment:
        raise Refused(f"{text!r} names no bucket: give s3://bucket/prefix")
    if not access or not secret:
        raise Refused(
            f"there are no credentials for {text}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY "
            "(and AWS_REGION; for a store that is not Amazon's, AWS_ENDPOINT_URL)"
        )
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint and urlsplit(endpoint).scheme not in ("http", "https"):
        raise Refused(f"AWS_ENDPOINT_URL={endpoint!r} is not an address: use https://host[:port]")
    return S3Place(
        endpoint=endpoint or f"https://s3.{region}.amazonaws.com",
        region=region,
        bucket=parts.netloc,
        prefix=parts.path.strip("/"),
        credentials=Credentials(access, secret, environ.get("AWS_SESSION_TOKEN", "")),
    )
