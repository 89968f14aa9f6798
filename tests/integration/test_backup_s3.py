"""A prefix in S3 as a place, against a server that checks every signature as a store does."""

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from libs.common.errors import Refused, Unavailable
from services.audit.backup import s3
from services.audit.backup.s3 import S3Place
from services.audit.backup.s3_signing import Credentials, signed_headers

CREDENTIALS = Credentials("key", "secret")


class StoreTwin:
    """The five requests of a store. `faults` are statuses to answer first."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.faults: list[int] = []
        self.page = 2

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.read()
        if self.faults:
            return web.Response(status=self.faults.pop(0), body=b"<Error><Code>Slow</Code></Error>")
        if request.headers["Authorization"] != _expected(request, body):
            return web.Response(status=403, body=b"<Error><Code>SignatureDoesNotMatch</Code>")
        if "list-type" in request.query:
            return self._list(request)
        name = request.path.removeprefix("/bucket/")
        if request.method == "PUT":
            self.objects[name] = body
            return web.Response()
        if request.method == "DELETE":
            self.objects.pop(name, None)
            return web.Response(status=204)
        found = self.objects.get(name)
        return web.Response(status=404) if found is None else web.Response(body=found)

    def _list(self, request: web.Request) -> web.Response:
        names = sorted(n for n in self.objects if n.startswith(request.query["prefix"]))
        start = int(request.query.get("continuation-token", "0"))
        rows = "".join(
            f"<Contents><Key>{name}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
            "</Contents>"
            for name in names[start : start + self.page]
        )
        more = start + self.page < len(names)
        mark = f"<NextContinuationToken>{start + self.page}</NextContinuationToken>" if more else ""
        text = f'<?xml version="1.0"?><ListBucketResult xmlns="http://s3/">{rows}{mark}'
        return web.Response(body=f"{text}</ListBucketResult>".encode())


def _expected(request: web.Request, body: bytes) -> str:
    return signed_headers(
        credentials=CREDENTIALS,
        region="r",
        method=request.method,
        host=request.headers["Host"],
        path=request.path,
        query=dict(request.query),
        body_sha256=hashlib.sha256(body).hexdigest(),
        stamp=request.headers["x-amz-date"],
    )["authorization"]


@pytest.fixture
async def twin() -> AsyncIterator[tuple[StoreTwin, str]]:
    store = StoreTwin()
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{path:.*}", store.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    yield store, f"http://{host}:{port}"
    await runner.cleanup()


@pytest.fixture
async def place(twin: tuple[StoreTwin, str]) -> AsyncIterator[S3Place]:
    found = S3Place(twin[1], "r", "bucket", "a/b", CREDENTIALS)
    yield found
    await found.close()


async def test_objects_are_put_read_and_removed(
    place: S3Place, twin: tuple[StoreTwin, str]
) -> None:
    data = bytes(range(256)) * 4_000
    await place.put("segments/x", data)
    assert list(twin[0].objects) == ["a/b/segments/x"]
    assert await place.get("segments/x") == data
    await place.delete("segments/x")
    assert await place.get("segments/x") is None


async def test_a_list_of_several_pages_is_read_to_its_end(place: S3Place) -> None:
    for number in range(5):
        await place.put(f"segments/{number}", b"x")
    await place.put("current", b"x")
    found = await place.old_names("segments", (datetime.now(UTC).year - 2022) * 300 * 86_400.0)
    assert found == [f"segments/{number}" for number in range(5)]


async def test_a_fault_of_the_store_is_tried_again(
    place: S3Place, twin: tuple[StoreTwin, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE_S", 0.01)
    twin[0].faults = [503, 500, 429]
    await place.put("current", b"x")
    assert await place.get("current") == b"x"
    twin[0].faults = [503] * s3.TRIES
    with pytest.raises(Unavailable, match="did not answer PUT in 5 tries"):
        await place.put("current", b"y")


async def test_a_wrong_key_is_refused_at_once(twin: tuple[StoreTwin, str]) -> None:
    place = S3Place(twin[1], "r", "bucket", "", Credentials("key", "wrong"))
    with pytest.raises(Refused, match="SignatureDoesNotMatch"):
        await place.put("current", b"x")
    await place.close()


async def test_a_store_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "FIRST_PAUSE_S", 0.01)
    place = S3Place("http://127.0.0.1:9", "r", "bucket", "", CREDENTIALS)
    with pytest.raises(Unavailable, match="AWS_ENDPOINT_URL"):
        await place.get("current")
    await place.close()
