"""Tenants, keys and access on the command line, against a real gateway."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from libs.embedded import identity, shape
from libs.embedded.shape import Shape
from services.api_gateway.access.auth import Keys
from tests.integration.gateway_world import KEY, World, gateway_world

PATIENCE_S = 60.0


class Shell:
    """`muster` as a person has it at hand: a profile of their own."""

    def __init__(self, home: Path, url: str) -> None:
        self.home, self.url = home, url
        self.profile = home / "profile.json"

    async def run(
        self, *arguments: str, stdin: str = "", code: int = 0, **more: str
    ) -> tuple[str, str]:
        return await asyncio.to_thread(self._run, arguments, stdin, code, more)

    def _run(
        self, arguments: tuple[str, ...], stdin: str, code: int, more: dict[str, str]
    ) -> tuple[str, str]:
        environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.getcwd(),
            "MUSTER_PROFILE": str(self.profile),
            "USER": "local",
            **more,
        }
        line = [sys.executable, "-c", "from libs.cli.main import main; main()", *arguments]
        done = subprocess.run(
            line,
            input=stdin,
            capture_output=True,
            text=True,
            env=environ,
            cwd=self.home,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == code, (arguments, done.stdout, done.stderr)
        return done.stdout, done.stderr


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with gateway_world(tmp_path, records_access=True) as found:
        yield found


@pytest.fixture
async def shell(world: World, tmp_path: Path) -> Shell:
    found = Shell(tmp_path, world.url)
    await found.run("login", world.url + "/", stdin=KEY + "\n")
    return found


async def test_login_checks_a_key_and_saves_it_privately(world: World, tmp_path: Path) -> None:
    shell = Shell(tmp_path, world.url)
    _, said = await shell.run("login", world.url, stdin="wrong\n", code=1)
    assert "does not accept your key" in said and not shell.profile.exists()
    out, _ = await shell.run("login", world.url, stdin=KEY + "\n")
    assert "tests of tenant default, admin" in out and KEY not in out
    assert shell.profile.stat().st_mode & 0o777 == 0o600
    assert json.loads(shell.profile.read_text()) == {
        "gateway": world.url,
        "key": KEY,
        "user": "tests",
    }


@pytest.mark.parametrize("kept", [{"state": "/var/lib/muster"}, {"gateway": "http://elsewhere:1"}])
async def test_login_does_not_overwrite_the_profile_of_another_cluster(
    world: World, tmp_path: Path, kept: dict[str, str]
) -> None:
    shell = Shell(tmp_path, world.url)
    shell.profile.write_text(json.dumps({"gateway": world.url, "key": "theirs", **kept}))
    _, said = await shell.run("login", world.url, stdin=KEY + "\n", code=2)
    assert "MUSTER_PROFILE=FILE muster login" in said and "theirs" in shell.profile.read_text()
    await shell.run(
        "login", world.url, stdin=KEY + "\n", MUSTER_PROFILE=str(tmp_path / "beside.json")
    )
    assert (
        "tests of tenant default"
        in (await shell.run("whoami", MUSTER_PROFILE=str(tmp_path / "beside.json")))[0]
    )
    await shell.run("login", "--replace", world.url, stdin=KEY + "\n")
    await shell.run("login", world.url, stdin=KEY + "\n")
    assert json.loads(shell.profile.read_text())["key"] == KEY


@pytest.mark.parametrize("number", ["nan", "inf", "-1", "x"])
async def test_an_invalid_number_of_gpus_is_refused(shell: Shell, number: str) -> None:
    _, said = await shell.run("tenant", "set", "physics", "--gpus", number, code=2)
    assert "--gpus" in said and number in said


async def test_a_key_is_created_used_rotated_and_revoked(shell: Shell) -> None:
    await shell.run("tenant", "set", "physics", "--gpus", "8")
    key, said = await shell.run(
        "key", "create", "--user", "ada", "--tenant", "physics", "--expires", "90d"
    )
    assert key.startswith("msk_") and key.count("\n") == 1 and "not shown again" in said
    ada = {"MUSTER_API_KEY": key.strip(), "MUSTER_URL": shell.url}
    assert "ada of tenant physics, member" in (await shell.run("whoami", **ada))[0]
    job = (await shell.run("submit", "--gpus", "1", "--", "true", **ada))[0].split()[0]
    assert "ada" in (await shell.run("describe", job))[0]
    key_id = key.split("_")[1]
    await shell.run("key", "rotate", key_id, "--grace", "0")
    await shell.run("whoami", code=1, **ada)
    assert key_id in (await shell.run("key", "list"))[0]
    await shell.run("key", "revoke", key_id)
    assert key_id not in (await shell.run("key", "list"))[0]


async def test_changing_one_limit_of_a_tenant_keeps_the_others(shell: Shell) -> None:
    await shell.run("tenant", "set", "physics", "--gpus", "8", "--shares-devices")
    await shell.run("tenant", "set", "physics", "--tokens-per-minute", "5")
    shown = json.loads((await shell.run("tenant", "show", "physics", "-o", "json"))[0])
    assert (shown["max_gpus"], shown["shares_devices"], shown["tokens_per_minute"]) == (8, True, 5)
    listed = (await shell.run("tenant", "list"))[0].splitlines()
    models, keys = next(line for line in listed if "physics" in line).split()[-2:]
    assert (models, keys) == ("200", "0")
    assert "is removed" in (await shell.run("tenant", "rm", "physics"))[0]


async def test_denied_requests_are_listed(shell: Shell) -> None:
    key = (await shell.run("key", "create", "--user", "eve", "--role", "viewer"))[0].strip()
    await shell.run("submit", "--", "true", code=1, MUSTER_API_KEY=key, MUSTER_URL=shell.url)
    await asyncio.sleep(0.3)
    lines = (await shell.run("log", "--access", "--denied", "--no-headers"))[0].splitlines()
    assert (
        len(lines) == 1
        and "eve@default" in lines[0]
        and "403" in lines[0]
        and "POST /v1/jobs" in lines[0]
    )
    await shell.run("log", "--access", "-f", code=2)


def test_a_lost_administrator_key_is_replaced_on_the_host(tmp_path: Path) -> None:
    state = tmp_path / "state"
    old = identity.api_key(state / "keys", "")
    shape.save(state, Shape(cluster_id="c"))
    shell = Shell(tmp_path, "")
    shell._run(("key", "reset", "--state", str(state)), "", 0, {})
    new = json.loads(shell.profile.read_text())["key"]
    assert accepted(state) == {identity.digest(old), identity.digest(new)}
    shell._run(("key", "reset", "--state", str(state), "--only"), "", 0, {})
    assert accepted(state) == {identity.digest(json.loads(shell.profile.read_text())["key"])}


def accepted(state: Path) -> set[str]:
    return set(Keys(str(identity.api_keys_file(state / "keys"))).of_host)


def test_a_directory_without_a_cluster_gets_no_key(tmp_path: Path) -> None:
    _, said = Shell(tmp_path, "")._run(
        ("key", "reset", "--state", str(tmp_path / "none")), "", 2, {}
    )
    assert "holds no cluster" in said and not (tmp_path / "none").exists()


async def test_limits_of_keys_and_of_tenants_at_models_on_the_command_line(
    world: World, shell: Shell
) -> None:
    made, _ = await shell.run("key", "create", "--user", "eve", "--requests-per-minute", "60")
    key_id = made.split("_")[1]
    listed = json.loads((await shell.run("key", "list", "-o", "json"))[0])
    assert [key["requests_per_minute"] for key in listed if key["id"] == key_id] == [60]
    out, _ = await shell.run("key", "limit", key_id, "--tokens-per-minute", "9000")
    assert out == f"key {key_id}: 9000 tokens a minute\n"
    assert "9000 tokens a minute" in (await shell.run("key", "list"))[0]
    assert "no limits" in (await shell.run("key", "limit", key_id))[0]
    await world.ask("PUT", "/v1/tenants/biology", 201, json={})
    body = {"name": "chat", "command": ["serve", "{port}"]}
    await world.ask("POST", "/v1/deployments", 201, json=body)
    await shell.run("model", "share", "chat", "--with", "biology", "--requests-per-minute", "6")
    await shell.run("model", "limit", "chat", "--tenant", "all", "--tokens-per-minute", "700")
    shown = json.loads((await shell.run("models", "chat", "-o", "json"))[0])
    assert shown["shared_with"] == ["biology"]
    assert shown["limits"] == {
        "*": {"requests_per_minute": 0, "tokens_per_minute": 700},
        "biology": {"requests_per_minute": 6, "tokens_per_minute": 0},
    }
