"""`muster secret` against a real gateway: no command prints the value."""

import json
from pathlib import Path

from libs.embedded.identity import vault_key_file
from tests.integration.gateway_world import KEY, World, gateway_world
from tests.integration.test_cli_identity import Shell

VALUE = "not-on-the-command-line"


async def stored(world: World, name: str) -> str | None:
    """Return the value of a secret, which no route returns."""
    value_id = world.gateway.cluster.secrets[f"default.{name}"].value_id
    return await world.gateway.vault.get("default", name, value_id)


async def test_a_secret_is_set_listed_used_and_removed(tmp_path: Path) -> None:
    async with gateway_world(tmp_path, vault_key_file=str(vault_key_file(tmp_path))) as world:
        shell = Shell(tmp_path, world.url)
        await shell.run("login", world.url, stdin=KEY + "\n")
        assert await shell.run("secret", "set", "hf-token", stdin=VALUE + "\n") == (
            "secret hf-token, version 1\n",
            "",
        )
        (tmp_path / "value").write_text(VALUE)
        assert (await shell.run("secret", "set", "hf-token", "--from-file", "value"))[
            0
        ] == "secret hf-token, version 2\n"
        assert await stored(world, "hf-token") == VALUE
        listed = (await shell.run("secret", "list"))[0]
        assert "hf-token" in listed and VALUE not in listed
        job = (
            await shell.run(
                "submit", "--secret", "hf-token", "--secret", "hf-token=OTHER", "--", "true"
            )
        )[0].split()[0]
        assert world.gateway.cluster.jobs[job].spec.secrets == {
            "HF_TOKEN": "hf-token",
            "OTHER": "hf-token",
        }  # type: ignore[index]
        _, said = await shell.run("submit", "--env", "HF_TOKEN=x", "--", "true", code=1)
        assert "--secret NAME=HF_TOKEN" in said
        await shell.run("secret", "rm", "hf-token")
        assert "hf-token" not in (await shell.run("secret", "list"))[0]


async def test_the_password_of_a_registry_is_a_secret_with_the_registry_s_name(
    tmp_path: Path,
) -> None:
    async with gateway_world(tmp_path, vault_key_file=str(vault_key_file(tmp_path))) as world:
        shell = Shell(tmp_path, world.url)
        await shell.run("login", world.url, stdin=KEY + "\n")
        given = ("secret", "set", "--registry", "reg.example:5000", "--username", "ann")
        assert await shell.run(*given, stdin=VALUE + "\n") == (
            "secret registry.reg.example_5000, version 1\n",
            "",
        )
        login = await stored(world, "registry.reg.example_5000")
        assert json.loads(login or "") == {"username": "ann", "password": VALUE}
        for wrong in (
            ("--registry", "reg.example"),
            ("name", "--registry", "reg.example", "--username", "ann"),
            ("name", "--username", "ann"),
            (),
            ("--registry", "https://reg.example", "--username", "ann"),
        ):
            _, said = await shell.run("secret", "set", *wrong, stdin=VALUE, code=2)
            assert "give either NAME, or" in said or "give a host as images name it" in said


async def test_a_gateway_without_a_vault_key_names_the_missing_setting(tmp_path: Path) -> None:
    async with gateway_world(tmp_path) as world:
        refused = await world.ask("PUT", "/v1/secrets/a", 422, json={"value": "v"})
        assert (
            "MUSTER_VAULT_KEY_FILE" in refused["detail"]
            and "a" not in world.gateway.cluster.secrets
        )
