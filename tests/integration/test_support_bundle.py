"""`muster support-bundle`, `version` and `config` as processes: what they say, and that no planted
secret leaves.
"""

import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cli_world import KEY, Problem, World

SECRETS = (
    "hunter2",
    "mk_plantedplantedplanted",
    "seed-of-a-service-0123",
    "env-value-0123456789",
    "planted-in-a-command",
    "prompt-planted",
)
JOB = {
    "id": "j1",
    "state": "running",
    "node_ids": ["n1"],
    "command": ["train", "planted-in-a-command"],
    "attempt": 1,
}
FACT = {
    "seq": 7,
    "at": "2026-01-01T00:00:00Z",
    "kind": "job.submitted",
    "writer": "facts.gateway.a",
    "summary": "planted-in-a-command",
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    found = World(tmp_path)
    found.profile({"gateway": found.url, "key": SECRETS[1], "state": str(tmp_path / "state")})
    (tmp_path / "state" / "logs").mkdir(parents=True)
    (tmp_path / "state" / "keys").mkdir()
    (tmp_path / "state" / "keys" / "audit.seed").write_text("seed-of-a-service-0123\n")
    (tmp_path / "state" / "logs" / "gateway.log").write_text(
        "INFO ready\nWARNING postgresql://muster:hunter2@db/m said no\nINFO key "
        "mk_plantedplantedplanted, seed seed-of-a-service-0123\n"
        "INFO the value is env-value-0123456789\n"
    )
    found.routes |= {
        "GET /v1/version": {"version": "0.1.0"},
        "GET /v1/cluster": {"cluster_id": "c", "seq": 7},
        "GET /v1/nodes": {
            "nodes": [{"id": "n1", "version": "0.1.0"}, {"id": "n2", "version": "0.0.9"}]
        },
        "GET /v1/gpus": {"gpus": []},
        "GET /v1/jobs": {"jobs": [JOB], "next": None},
        "GET /v1/events": {
            "events": [
                {**FACT, "fact": {"job_id": "j1", "spec": {"environment": {"A": "prompt-planted"}}}}
            ],
            "more": False,
        },
        "GET /readyz": Problem(503, "not ready: log_heard"),
    }
    yield found
    found.close()


def parts(path: Path) -> dict[str, str]:
    with tarfile.open(path) as archive:
        return {
            entry.name.partition("/")[2]: archive.extractfile(entry).read().decode()
            for entry in archive
        }  # type: ignore[union-attr]


def test_a_bundle_holds_diagnostics_and_no_secret(world: World, tmp_path: Path) -> None:
    environment = {
        "MUSTER_AUDIT_URL": "postgresql://u:hunter2@db/m",
        "SOME_TOKEN": "env-value-0123456789",
    }
    code, out, err = world.run(
        "support-bundle", "--output", "b.tgz", "--state", str(tmp_path / "state"), **environment
    )
    assert (code, err) == (0, ""), err
    found = parts(tmp_path / "b.tgz")
    assert f"{len(found)} files" in out and (tmp_path / "b.tgz").stat().st_mode & 0o777 == 0o600
    assert [
        (name, secret)
        for name, text in found.items()
        for secret in (*SECRETS, KEY)
        if secret in text
    ] == []
    assert (
        "INFO ready" in found["logs/gateway.log"]
        and '"j1"' in found["jobs.json"]
        and '"job.submitted"' in found["facts.json"]
    )
    assert "postgresql://u:" in found["configuration.json"] and "0.0.9" in found["nodes.json"]
    assert "not ready" in found["readyz.json"] and "not available" in found["metrics.txt"]


def test_a_bundle_of_a_stopped_cluster_is_made_too(world: World, tmp_path: Path) -> None:
    world.close()
    code, _, err = world.run(
        "support-bundle", "--output", "b.tgz", "--state", str(tmp_path / "state")
    )
    found = parts(tmp_path / "b.tgz")
    assert (
        (code, err) == (0, "")
        and "no gateway answers" in found["cluster.json"]
        and "INFO ready" in found["logs/gateway.log"]
    )


def test_version_names_the_gateway_and_each_version_of_the_agents(world: World) -> None:
    code, out, _ = world.run("version", "-o", "json")
    assert (
        code == 0
        and [word in out for word in ('"client"', '"gateway"', '"0.0.9"', '"n2"')] == [True] * 4
    )
    world.close()
    code, out, _ = world.run("version")
    assert code == 0 and "no gateway answers" in out
    assert world.run("version", "--client")[1].startswith("muster ")


def test_config_names_sources_and_problems(world: World, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("MUSTER_LEASE_MS=9000\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "security.yaml").write_text("api_keys_file: /unknown/has/this\n")
    given = {"MUSTER_CONFIG_DIR": "etc", "MUSTER_LOG_LEVEL": "debug"}
    code, out, _ = world.run("config", "show", "--changed", "--no-headers", **given)
    lines = [line.split() for line in out.splitlines()]
    assert code == 0 and sorted(lines) == [
        ["api_keys_file", "/unknown/has/this", "etc/security.yaml"],
        ["lease_ms", "9000", ".env"],
        ["log_level", "DEBUG", "environment"],
    ]
    code, _, err = world.run("config", "check", **given)
    assert code == 2 and "MUSTER_API_KEYS_FILE: /unknown/has/this cannot be read" in err
    code, _, err = world.run("config", "check", MUSTER_LEAS_MS="1")
    assert code == 2 and "did you mean MUSTER_LEASE_MS?" in err
    (tmp_path / ".env").unlink()
    assert world.run("config", "check")[0] == 0


def test_an_unknown_variable_stops_the_start(world: World, tmp_path: Path) -> None:
    code, _, err = world.run("up", "--state", "new", "--set", "leas_ms=1")
    assert code == 2 and "did you mean MUSTER_LEASE_MS?" in err and not (tmp_path / "new").exists()
