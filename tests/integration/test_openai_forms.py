"""Forms with large files pass through the gateway: in any order of their fields, without being held
in memory, and within their bounds.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from services.api_gateway.openai import form_body
from services.api_gateway.openai.catalogue import Listed
from tests.integration.gateway_world import World, gateway_world
from tests.integration.openai_replica import running
from tests.integration.openai_world import Ledger, add_replicas, error_of, model_world, served
from tests.integration.test_openai_failures import until
from tests.integration.test_openai_named_models import deployed

TRANSCRIBE = "/v1/audio/transcriptions"
AUDIO = bytes(range(256)) * 20_000
HASH = [len(AUDIO), hashlib.sha256(AUDIO).hexdigest()]
HEAD = b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n'
FILE = b'--x\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
TYPE = {"content-type": "multipart/form-data; boundary=x"}


def form(*fields: tuple[str, str | bytes]) -> aiohttp.FormData:
    made = aiohttp.FormData()
    for name, value in fields:
        made.add_field(name, value, filename="a.wav" if isinstance(value, bytes) else None)
    return made


@pytest.mark.parametrize("order", [("model", "file"), ("file", "model")])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_file_arrives_whole_and_the_model_has_the_server_s_name(
    tmp_path: Path, order: tuple[str, str], chunked: bool
) -> None:
    async with gateway_world(tmp_path) as world, running() as replica:
        await deployed(world, "m", served_name="openai/whisper-1")
        await add_replicas(world, "m", replica)
        values: dict[str, str | bytes] = {"model": "m", "file": AUDIO}
        data = form(("language", "en"), *((name, values[name]) for name in order))
        body = data()
        headers = {} if chunked else {"content-length": str(body.size)}
        async with world.session.post(world.url + TRANSCRIBE, data=body, headers=headers) as found:
            assert found.status == 200 and (await found.json())["text"] == "hello"
        got = {"language": "en", "model": "openai/whisper-1", "file": HASH}
        assert replica.forms == [got]


async def test_the_file_goes_on_before_it_has_arrived_whole(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def slowly() -> AsyncIterator[bytes]:
        yield HEAD + FILE + b"begin"
        await asyncio.sleep(0.05)
        yield b"x" * 20_000
        await go.wait()
        yield b"end\r\n--x--\r\n"

    async with model_world(tmp_path) as (world, replica):
        post = asyncio.create_task(_post(world, slowly()))
        await asyncio.wait_for(replica.begun.wait(), 5)
        assert not post.done() and replica.forms == []
        go.set()
        await asyncio.wait_for(post, 5)
        whole = b"begin" + b"x" * 20_000 + b"end"
        assert replica.forms[0]["file"] == [20_008, hashlib.sha256(whole).hexdigest()]


async def test_only_a_bounded_part_is_held_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file before the field `model` is on disk, a file behind it nowhere."""
    held: list[tuple[int, bool]] = []
    close = form_body.FormBody.close

    def closing(body: form_body.FormBody) -> None:
        held.append((body._held_bytes, body._held._rolled))  # type: ignore[attr-defined]
        close(body)

    monkeypatch.setattr(form_body.FormBody, "close", closing)
    async with model_world(tmp_path) as (world, replica):
        for fields in ((("model", "m"), ("file", AUDIO)), (("file", AUDIO), ("model", "m"))):
            async with world.session.post(world.url + TRANSCRIBE, data=form(*fields)) as found:
                assert found.status == 200
        assert [each["file"] for each in replica.forms] == [HASH, HASH]
    assert held[0][0] <= form_body.HELD_BYTES and not held[0][1]
    assert held[1][0] > len(AUDIO) and held[1][1]


async def test_a_form_that_was_held_is_sent_again_to_another_replica(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica), running() as other:
        world.gateway.models = Listed(served(replica.port, other.port))
        data = form(("x_busy", "1"), ("file", AUDIO), ("model", "m"))
        async with world.session.post(world.url + TRANSCRIBE, data=data) as found:
            assert found.status == 503
        assert [len(each.forms) for each in (replica, other)] == [1, 1]
        data = form(("x_busy", "1"), ("model", "m"), ("file", AUDIO))
        async with world.session.post(world.url + TRANSCRIBE, data=data) as found:
            assert found.status == 503
        assert len(replica.forms) + len(other.forms) == 3


@pytest.mark.parametrize("length", [True, False])
async def test_a_form_over_the_bound_is_a_413(tmp_path: Path, length: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield HEAD + FILE
        for _ in range(20):
            yield b"x" * 10_000

    async with model_world(tmp_path, model_form_bytes=100_000) as (world, _):
        data: Any = HEAD + FILE + b"x" * 200_000 if length else pieces()
        async with world.session.post(world.url + TRANSCRIBE, data=data, headers=TYPE) as found:
            assert (await error_of(found, 413))["code"] == "request_too_large"


async def test_a_form_that_does_not_end_is_a_408_and_blames_no_replica(tmp_path: Path) -> None:
    async def for_ever() -> AsyncIterator[bytes]:
        yield HEAD + FILE
        await asyncio.sleep(60)

    async with model_world(tmp_path, model_body_ms=1_000) as (world, _):
        world.gateway.meter = ledger = Ledger(10_000)
        async with world.session.post(world.url + TRANSCRIBE, data=for_ever(), headers=TYPE) as it:
            assert (await error_of(it, 408))["code"] == "timeout"
        await until(lambda: ledger.settled == [0])  # no replica had the whole form
        async with world.session.post(
            world.url + TRANSCRIBE, data=form(("model", "m"), ("file", b"short"))
        ) as found:
            assert found.status == 200
        assert world.gateway.queues.open.counts == {}
        assert not [task for task in asyncio.all_tasks() if "_watched" in repr(task)]


async def test_a_client_that_leaves_in_the_middle_ends_the_request_at_the_replica(
    tmp_path: Path,
) -> None:
    async def for_ever() -> AsyncIterator[bytes]:
        yield HEAD + FILE + b"x" * 200_000
        await asyncio.sleep(60)

    async with model_world(tmp_path) as (world, replica):
        post = asyncio.create_task(_post(world, for_ever()))
        await asyncio.wait_for(replica.begun.wait(), 5)
        post.cancel()
        async with asyncio.timeout(5):
            while world.gateway.queues.open.counts or not replica.cancelled:
                await asyncio.sleep(0.01)


async def _post(world: World, data: AsyncIterator[bytes]) -> None:
    async with world.session.post(world.url + TRANSCRIBE, data=data, headers=TYPE):
        pass


@pytest.mark.parametrize(
    ("fields", "param"),
    [((("file", AUDIO),), "model"), ((("model", "no-such"), ("file", AUDIO)), "model")],
)
async def test_a_form_without_a_model_that_is_served_is_refused(
    tmp_path: Path, fields: tuple[tuple[str, str | bytes], ...], param: str
) -> None:
    async with model_world(tmp_path) as (world, replica):
        async with world.session.post(world.url + TRANSCRIBE, data=form(*fields)) as found:
            assert found.status in (400, 404) and (await found.json())["error"]["param"] == param
        assert replica.forms == []


async def test_a_form_reserves_a_fixed_number_of_tokens_and_settles_what_was_counted(
    tmp_path: Path,
) -> None:
    async with model_world(tmp_path, model_output_tokens=77) as (world, _):
        world.gateway.meter = ledger = Ledger(1_000)
        data = form(("model", "m"), ("file", AUDIO))
        async with world.session.post(world.url + TRANSCRIBE, data=data) as found:
            assert found.status == 200
        assert (ledger.reserved, ledger.settled) == ([77], [9])


async def test_images_are_edited_by_a_form_or_by_json(tmp_path: Path) -> None:
    async with model_world(tmp_path) as (world, replica):
        data = form(("model", "m"), ("prompt", "a cat"), ("image", AUDIO))
        async with world.session.post(world.url + "/v1/images/edits", data=data) as found:
            assert found.status == 200
        await world.ask("POST", "/v1/images/edits", json={"model": "m", "prompt": "a cat"})
        assert replica.forms[0]["image"] == HASH and len(replica.bodies) == 1


async def test_held_forms_are_bounded_for_each_tenant_and_in_all(tmp_path: Path) -> None:
    go = asyncio.Event()

    async def held() -> AsyncIterator[bytes]:
        yield FILE + b"x" * 60_000
        await go.wait()
        yield b"\r\n" + HEAD + b"--x--\r\n"

    async def asked(world: World) -> int:
        async with world.session.post(world.url + TRANSCRIBE, data=held(), headers=TYPE) as found:
            return found.status

    async with model_world(tmp_path, model_forms_bytes=200_000) as (world, _):
        first = asyncio.create_task(asked(world))
        await asyncio.sleep(0.2)
        assert await asked(world) == 429
        await world.ask("PUT", "/v1/tenants/biology", 201, json={})
        async with world.as_("operator", "eve", "biology") as eve:
            second = asyncio.create_task(asked(eve))
            await asyncio.sleep(0.2)
            await world.ask("PUT", "/v1/tenants/chemistry", 201, json={})
            async with world.as_("operator", "tom", "chemistry") as tom:
                third = asyncio.create_task(asked(tom))
                await asyncio.sleep(0.2)
                await world.ask("PUT", "/v1/tenants/physics", 201, json={})
                async with world.as_("operator", "uma", "physics") as uma:
                    assert await asked(uma) == 503
                go.set()
                assert [await first, await second, await third] == [200, 200, 200]
                assert await asked(world) == 200
