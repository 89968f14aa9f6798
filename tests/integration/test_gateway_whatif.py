"""POST /v1/whatif refuses what a submission refuses, and asks with job ids and the user."""

from pathlib import Path

import msgspec

from libs.common import subjects
from services.scheduler.questions.what_if import WhatIfAsk
from tests.integration.gateway_world import gateway_world


async def test_whatif_checks_a_job_as_its_submission_does(tmp_path: Path) -> None:
    asks: list[WhatIfAsk] = []

    async def answer(subject: str, data: bytes) -> bytes:
        asks.append(msgspec.msgpack.decode(data, type=WhatIfAsk))
        return b"{}"

    async with gateway_world(tmp_path) as world:
        await world.bus.subscribe(subjects.ask_scheduler("whatif"), answer)
        for tenant in ("mine", "bank"):
            await world.ask("PUT", f"/v1/tenants/{tenant}", 201)
        await world.writers.register("n1", 2)
        await world.settle()
        night = {"nodes": ["n1"], "duration": "1h", "users": ["mine/ada"]}
        await world.ask("PUT", "/v1/reservations/night", 201, json=night)
        async with (
            world.as_("member", "eve", "bank") as eve,
            world.as_("member", "ada", "mine") as ada,
        ):
            theirs = (await eve.submit())["id"]
            own = (await ada.submit(name="train"))["id"]
            job = {"command": ["x"]}
            for more, status in (
                ({"after": f"afterany:{theirs}"}, 404),
                ({"after": "afterany:unknown"}, 404),
                ({"queue": "unknown"}, 422),
                ({"reservation": "unknown"}, 422),
            ):
                for path in ("/v1/jobs", "/v1/whatif"):
                    await ada.ask("POST", path, status, json={**job, **more})
            reserved = {**job, "reservation": "night"}
            await eve.ask("POST", "/v1/whatif", 403, json=reserved)
            assert asks == []
            await ada.ask("POST", "/v1/whatif", json={**reserved, "after": "afterok:train"})
    (ask,) = asks
    assert (ask.tenant, ask.user, ask.spec.after) == ("mine", "ada", (("afterok", own),))
