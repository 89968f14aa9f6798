"""A secret has the value that its last fact names, also after refused or concurrent requests."""

import asyncio
from pathlib import Path

from libs.common.transport.kv import MemoryOutputs
from libs.embedded.identity import vault_key_file
from services.api_gateway.secrets.vault import PLACES
from tests.integration.gateway_world import gateway_world
from tests.integration.test_secrets import asked, secret_world


class HeldRemovals(MemoryOutputs):
    """A store whose removals wait until the test lets them go."""

    def __init__(self, values: dict[str, bytes]) -> None:
        super().__init__()
        self.values = values
        self.begun, self.may_go = asyncio.Event(), asyncio.Event()

    async def swap(self, key: str, data: bytes, revision: int) -> bool:
        if not data:
            self.begun.set()
            await self.may_go.wait()
        return await super().swap(key, data, revision)


async def test_a_value_that_was_refused_is_given_to_no_attempt(tmp_path: Path) -> None:
    key_file = str(vault_key_file(tmp_path))
    async with gateway_world(
        tmp_path, vault_key_file=key_file, tenant_bytes_per_minute=6_000
    ) as world:
        await world.writers.begin_term()
        await world.writers.register("n1")
        await world.ask("PUT", "/v1/tenants/physics", 201, json={})
        async with world.as_("member", "ada", "physics") as ada:
            ada.writers = world.writers
            await ada.ask("PUT", "/v1/secrets/hf-token", 201, json={"value": "v0"})
            job_id = await ada.run_to("placed", secrets={"HF_TOKEN": "hf-token"})
            last, status = 0, 200
            while status == 200:
                value = {"value": f"v{last + 1}"}
                async with ada.session.put(ada.url + "/v1/secrets/hf-token", json=value) as answer:
                    status = answer.status
                last += status == 200
            assert status == 429
            assert await asked(world, "n1", job_id) == {"HF_TOKEN": f"v{last}"}
            shown = (await ada.ask("GET", "/v1/secrets"))["secrets"]
            assert [each["version"] for each in shown] == [last + 1]
            values = world.gateway.vault.store.values  # type: ignore[attr-defined]
            assert sum(map(bool, values.values())) == 1


async def test_a_removal_leaves_the_value_that_was_set_meanwhile(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        job_id = await world.run_to("placed", secrets={"HF_TOKEN": "hf-token"})
        store = HeldRemovals(world.gateway.vault.store.values)  # type: ignore[attr-defined]
        world.gateway.vault.store = store
        removal = asyncio.create_task(world.ask("DELETE", "/v1/secrets/hf-token", 204))
        await store.begun.wait()
        await world.ask("PUT", "/v1/secrets/hf-token", 201, json={"value": "new"})
        store.may_go.set()
        await removal
        assert await asked(world, "n1", job_id) == {"HF_TOKEN": "new"}


async def test_an_old_value_leaves_the_bucket(tmp_path: Path) -> None:
    async with secret_world(tmp_path) as world:
        values = world.gateway.vault.store.values  # type: ignore[attr-defined]
        for number in range(2 * PLACES + 1):
            await world.ask("PUT", "/v1/secrets/hf-token", json={"value": f"v{number}"})
            assert sum(map(bool, values.values())) == 1
        await world.ask("DELETE", "/v1/secrets/hf-token", 204)
        assert not any(values.values()) and len(values) <= PLACES
