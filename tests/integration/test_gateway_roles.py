"""Every route with every role, with no key and with a wrong one, over real HTTP; the expectations
are made from the table itself.
"""

import logging
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest

from libs.common import subjects
from libs.common.messages.channel_messages import Exec, Forward
from libs.common.model import JobId
from services.api_gateway.access import roles
from services.api_gateway.access.roles import NOTHING, ROLES, ROUTES
from services.api_gateway.http import channels, locks
from services.api_gateway.http.channels import REQUESTS
from tests.integration.gateway_world import World, gateway_world

# Statuses that say: you were let through, and what you asked for is not there or not right.
LET_THROUGH = (200, 201, 202, 204, 400, 404, 409, 422, 426, 503)
# These answer for ever.
STREAMS = ("/v1/watch",)
WISHED = {
    "/v1/jobs/{ref}/exec": {
        "muster-channel": b64encode(msgspec.json.encode(Exec(("true",)))).decode()
    },
    "/v1/jobs/{ref}/forward": {
        "muster-channel": b64encode(msgspec.json.encode(Forward(80))).decode()
    },
    "/v1/jobs/{ref}/attach": {},
}


@pytest.fixture
async def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    monkeypatch.setattr(locks, "WAIT_ONCE_S", 0.2)  # no scheduler runs: no lock is ever held
    async with gateway_world(tmp_path) as found:
        yield found


def path_of(route: str) -> str:
    return route.replace("{", "no-").replace("}", "")


async def status(
    session: aiohttp.ClientSession, url: str, method: str, route: str, headers: dict[str, str]
) -> tuple[int, str]:
    async with session.request(
        method, url + path_of(route), headers=headers, data=b"{}"
    ) as response:
        return (
            response.status,
            "" if route in STREAMS and response.status == 200 else await response.text(),
        )


@pytest.mark.parametrize("role", ROLES)
async def test_role_reaches_exactly_what_its_row_allows(world: World, role: str) -> None:
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada", "role": role})
    async with aiohttp.ClientSession() as session:
        for method, route in ROUTES:
            found, text = await status(
                session=session,
                url=world.url,
                method=method,
                route=route,
                headers={"authorization": f"Bearer {made['key']}"},
            )
            reached = roles.reach(role, method, route) != NOTHING
            assert (
                (found in LET_THROUGH)
                if reached
                else (found == 403 and f"the role {role} may not use" in text)
            ), (method, route, found, text)


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "no API key provided"),
        ({"authorization": "Bearer msk_x_y"}, "this key is unknown, revoked or expired"),
        ({"authorization": "Basic dGVzdA=="}, "no API key provided"),
    ],
)
async def test_every_route_needs_an_accepted_key(
    world: World, headers: dict[str, str], words: str
) -> None:
    async with aiohttp.ClientSession() as session:
        for method, route in ROUTES:
            found, text = await status(
                session=session, url=world.url, method=method, route=route, headers=headers
            )
            assert found == 401 and words in text, (method, route, found)


async def handshake(
    session: aiohttp.ClientSession, world: World, route: str, key: str
) -> tuple[int, str]:
    """Return the status and the refusal that a WebSocket of the route gets.

    This client does not show the body of a refusal, but the access record does.
    """
    try:
        async with session.ws_connect(
            world.url + path_of(route), headers={"authorization": f"Bearer {key}", **WISHED[route]}
        ):
            return 101, ""
    except aiohttp.WSServerHandshakeError as error:
        return error.status, error.message


@pytest.mark.parametrize("role", ROLES)
async def test_a_websocket_is_held_to_the_same_row(world: World, role: str) -> None:
    made = await world.ask("POST", "/v1/keys", 201, json={"user": "ada", "role": role})
    async with aiohttp.ClientSession() as session:
        for route in REQUESTS:
            reached = roles.reach(role, "GET", route) != NOTHING
            assert (await handshake(session, world, route, made["key"]))[0] == (
                404 if reached else 403
            ), route
            assert (await handshake(session, world, route, "msk_x_y"))[0] == 401
        assert (await handshake(session, world, "/v1/jobs/{ref}/attach", made["key"]))[0] == 404


async def test_a_websocket_to_a_job_is_its_user_s_own(world: World) -> None:
    await world.writers.register("n1")
    await world.writers.begin_term()
    job = await world.run_to("running", user="carol")
    async with world.as_("member", "ada") as ada, world.as_("operator", "root") as root:
        for route, header in ((route, WISHED[route]) for route in REQUESTS):
            for asker, status in (
                (ada, 403),
                (root, 503),
            ):  # no agent answers here: permitted users get its error
                with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                    await asker.session.ws_connect(
                        world.url + route.replace("{ref}", job), headers=header
                    )
                assert refused.value.status == status, (route, asker)


@pytest.mark.parametrize(
    "wish",
    [
        b"",
        b"!",
        b64encode(b'{"type":"exec","command":[]}'),
        b64encode(b'{"type":"forward","port":0}'),
    ],
)
async def test_a_wish_that_makes_no_sense_is_refused(
    world: World, wish: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    job = (await world.submit())["id"]
    for route in REQUESTS:
        with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
            await world.session.ws_connect(
                world.url + route.replace("{ref}", job), headers={"muster-channel": wish.decode()}
            )
        assert refused.value.status == 422
    assert [
        record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR
    ] == []


@pytest.mark.attack
async def test_a_command_is_read_only_when_its_sender_may_execute_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    monkeypatch.setattr(channels, "redacted", lambda text: read.append(text) or "")
    job = (await world.submit(user="carol"))["id"]
    header = {
        "muster-channel": b64encode(msgspec.json.encode(Exec(("echo", "secret" * 600)))).decode()
    }
    too_long = {"muster-channel": "A" * (channels.HEADER_BYTES_MAX + 1)}
    async with world.as_("member", "ada") as ada, world.as_("operator", "root") as root:
        for asker, given, status in (
            (ada, header, 403),
            (ada, too_long, 403),
            (root, too_long, 422),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await asker.session.ws_connect(f"{world.url}/v1/jobs/{job}/exec", headers=given)
            assert refused.value.status == status
        assert read == []
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await root.session.ws_connect(f"{world.url}/v1/jobs/{job}/exec", headers=header)
        assert len(read) == 1


async def test_no_redirection_takes_a_key_elsewhere(world: World) -> None:
    async with world.session.get(
        world.url + "/v1/jobs/", headers={"host": "elsewhere.example"}, allow_redirects=False
    ) as answer:
        assert answer.status == 404 and "location" not in answer.headers


async def test_a_probe_needs_no_key(world: World) -> None:
    async with aiohttp.ClientSession() as session:
        assert [
            (await status(session=session, url=world.url, method="GET", route=route, headers={}))[0]
            for route in roles.PROBES
        ] == [200] * 3


async def test_a_member_sees_only_their_tenant_s_jobs(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    theirs = (await world.submit(name="train"))["id"]
    await world.writers.register("n1")
    await world.writers.begin_term()
    await world.writers.queue(theirs)
    await world.writers.place(theirs, "n1")
    await world.settle()
    async with world.as_("member", "ada", "physics") as ada:
        own = await ada.submit(name="train")
        assert (own["tenant"], own["user"]) == ("physics", "ada")
        assert [job["id"] for job in (await ada.ask("GET", "/v1/jobs?all=1"))["jobs"]] == [
            own["id"]
        ]
        assert (await ada.ask("GET", "/v1/jobs/train"))["id"] == own["id"]
        for path in (
            f"/v1/jobs/{theirs}",
            f"/v1/jobs/{theirs[:6]}",
            f"/v1/jobs/{theirs}/history",
            f"/v1/jobs/{theirs}/output",
        ):
            await ada.ask("GET", path, 404)
        await ada.ask("POST", f"/v1/jobs/{theirs}/cancel", 404)
        events = (await ada.ask("GET", "/v1/events?limit=1000"))["events"]
        assert {event["fact"].get("job_id", own["id"]) for event in events} == {own["id"]}
        assert {event["kind"] for event in events} == {"job.submitted", "term.began", "tenant.set"}
        assert (await ada.ask("GET", "/v1/nodes/n1"))["node"]["job_ids"] == []
        assert [each["holders"] for each in (await ada.ask("GET", "/v1/gpus"))["gpus"]] == [
            [{"job_id": "", "attempt": 0, "share": 100}],
            [],
        ]
        assert [each["name"] for each in (await ada.ask("GET", "/v1/tenants"))["tenants"]] == [
            "physics"
        ]
        await ada.ask("GET", "/v1/tenants/default", 404)
        async with ada.session.get(ada.url + "/v1/watch") as response:
            seen = await response.content.readuntil(b"event: ready")
            assert own["id"].encode() in seen and theirs.encode() not in seen


async def test_a_member_changes_only_their_own_jobs_and_in_their_own_name(world: World) -> None:
    async with (
        world.as_("member", "ada") as ada,
        world.as_("member", "bob") as bob,
        world.as_("operator", "root") as root,
    ):
        job = (await ada.submit())["id"]
        assert "belongs to ada" in (await bob.ask("POST", f"/v1/jobs/{job}/kill", 403))["detail"]
        await bob.ask("PUT", f"/v1/jobs/{job}/stdin", 403, data=b"x")
        await bob.ask("GET", f"/v1/jobs/{job}")
        assert (
            "may act only as bob"
            in (await bob.ask("POST", "/v1/jobs", 403, json={"command": ["true"], "user": "ada"}))[
                "detail"
            ]
        )
        await ada.ask("POST", f"/v1/jobs/{job}/cancel", 202, json={"user": "ada"})
        other = (await ada.submit())["id"]
        await root.ask("POST", f"/v1/jobs/{other}/kill", 202, json={"user": "carol"})


async def test_a_member_changes_only_their_own_models(world: World) -> None:
    model = {"name": "chat", "command": ["serve", "{port}"]}
    await world.ask("PUT", "/v1/tenants/physics", 201)
    async with (
        world.as_("member", "ada", "physics") as ada,
        world.as_("member", "bob", "physics") as bob,
        world.as_("member", "eve") as eve,
    ):
        assert (await ada.ask("POST", "/v1/deployments", 201, json=model))["tenant"] == "physics"
        await bob.ask("GET", "/v1/deployments/chat")
        await bob.ask("DELETE", "/v1/deployments/chat", 403)
        await eve.ask("GET", "/v1/deployments/chat", 404)
        await eve.ask("DELETE", "/v1/deployments/chat", 404)
        assert (await eve.ask("GET", "/v1/deployments?all=1"))["deployments"] == []
        await ada.ask("PATCH", "/v1/deployments/chat", json={"replicas": 2})


async def test_a_job_that_only_the_archive_knows_stays_its_tenant_s(world: World) -> None:
    await world.ask("PUT", "/v1/tenants/physics", 201)
    await world.writers.register("n1")
    await world.writers.begin_term()
    job_id = await world.run_to("completed")
    world.gateway.cluster.jobs.pop(JobId(job_id))
    world.gateway.index.forget_gone()
    seqs = world.gateway.history.of(JobId(job_id))

    async def audit(subject: str, data: bytes) -> bytes:
        return msgspec.msgpack.encode(seqs if data.decode() == job_id else [])

    await world.bus.subscribe(subjects.ask_audit("job"), audit)
    async with world.as_("member", "ada", "physics") as ada, world.as_("viewer", "bob") as bob:
        await ada.ask("GET", f"/v1/jobs/{job_id}", 404)
        await ada.ask("GET", f"/v1/jobs/{job_id}/history", 404)
        await ada.ask("GET", f"/v1/events?job={job_id}", 404)
        await bob.ask("GET", f"/v1/jobs/{job_id}", 410)
        assert (await bob.ask("GET", f"/v1/jobs/{job_id}/history"))["facts"][0][
            "kind"
        ] == "job.submitted"
        assert (await bob.ask("GET", f"/v1/events?job={job_id}"))["events"][0][
            "kind"
        ] == "job.submitted"
