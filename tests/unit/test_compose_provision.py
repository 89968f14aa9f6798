"""The `init` container fills the volumes as deploy/docker-compose.yml expects."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509

from libs.common.errors import Refused
from libs.common.safety.following import TLS_NAME
from libs.common.settings import settings
from libs.common.settings.other_variables import ELSEWHERE
from libs.common.settings.settings import Settings
from libs.compose import containers as c
from libs.compose.provision import provision, reset_key
from libs.embedded import identity
from tests.tidy import ROOT

COMPOSE = ROOT / "deploy" / "docker-compose.yml"
VOLUMES = (c.AUTHORITY, c.CLI, *(each.container for each in c.given()))


@pytest.fixture
def owners(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Record the new owner of each file; only root may change owners."""
    found: dict[str, int] = {}
    monkeypatch.setattr(os, "chown", lambda path, uid, gid: found.__setitem__(str(path), uid))
    return found


@pytest.fixture
def root(tmp_path: Path, owners: dict[str, int]) -> Path:
    for name in VOLUMES:
        (tmp_path / name).mkdir()
    assert provision(tmp_path)
    return tmp_path


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_second_run_changes_nothing(root: Path) -> None:
    before = contents(root)
    assert not provision(root)
    assert contents(root) == before


def accepted(root: Path) -> list[str]:
    """Return the API keys that both gateways accept."""
    found = {
        (root / name / c.IDENTITY / c.API_KEYS).read_text() for name in ("gateway-a", "gateway-b")
    }
    assert len(found) == 1
    return found.pop().split()


def profile_key(root: Path) -> str:
    return str(json.loads((root / c.CLI / "profile.json").read_text())["key"])


def test_reset_key_is_accepted_beside_the_old_one(root: Path) -> None:
    old = profile_key(root)
    reset_key(root, only=False)
    assert profile_key(root) != old
    assert accepted(root) == [identity.digest(old), identity.digest(profile_key(root))]
    assert not provision(root) and accepted(root)[1] == identity.digest(profile_key(root))


def test_reset_key_with_only_makes_the_old_one_void(root: Path) -> None:
    reset_key(root, only=True)
    assert accepted(root) == [identity.digest(profile_key(root))]


def test_no_two_clusters_share_a_secret(root: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in VOLUMES:
        (other / name).mkdir(parents=True)
    provision(other)
    kept, others = contents(root / c.AUTHORITY), contents(other / c.AUTHORITY)
    assert [name for name in kept if kept[name] == others[name]] == []


def test_certificates_of_nats_servers_have_all_their_names(
    root: Path,
) -> None:
    def names(path: Path) -> set[str]:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        return set(
            certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            ).value.get_values_for_type(x509.DNSName)
        )

    found = {
        name: names(root / name / c.IDENTITY / "server.pem")
        for name in (*c.ALL_SERVERS, c.POSTGRES, "gateway-a")
    }
    assert all(found[name] == {*c.ALL_SERVERS, TLS_NAME} for name in c.ALL_SERVERS)
    assert (found[c.POSTGRES], found["gateway-a"]) == (
        {c.POSTGRES, TLS_NAME},
        {c.GATEWAY, TLS_NAME},
    )


def test_container_holds_its_own_seed_only(root: Path) -> None:
    seeds = {
        path.read_text().strip(): path.stem for path in (root / c.AUTHORITY / "keys").glob("*.seed")
    }
    holds = {
        name: sorted(
            seeds[seed]
            for path in (root / name).rglob("*")
            if path.is_file() and (seed := path.read_text().strip()) in seeds
        )
        for name in VOLUMES
        if name != c.AUTHORITY
    }
    assert {name: found for name, found in holds.items() if found} == {
        "scheduler-a": ["scheduler"],
        "scheduler-b": ["scheduler"],
        "quota": ["quota"],
        "audit": ["audit", "audit-heads", "trimmer"],
        **{f"nats-{number}": ["keeper"] for number in (1, 2, 3, 4, 5)},
        **{f"gateway-{which}": [f"gateway-{which}"] for which in "ab"},
        **{
            node_id: [f"node-{node_id}"]
            for node_id in ("node-1", "node-2", "node-3", "node-4", "nvidia", "amd")
        },
    }


def test_no_container_holds_the_authoritys_key(root: Path) -> None:
    secret = (root / c.AUTHORITY / "authority.key").read_bytes()
    assert [name for name, data in contents(root).items() if data == secret] == [
        f"{c.AUTHORITY}/authority.key"
    ]


def test_only_the_cli_container_holds_the_administrator_key_in_clear(
    root: Path,
) -> None:
    key = json.loads((root / c.CLI / "profile.json").read_text())["key"]
    for which in "ab":
        assert (
            identity.digest(key)
            in (root / f"gateway-{which}" / c.IDENTITY / c.API_KEYS).read_text().split()
        )
    assert [name for name, data in contents(root).items() if key.encode() in data] == [
        "authority/admin.key",
        "cli/profile.json",
    ]


def test_each_volume_belongs_to_the_user_of_its_container(
    root: Path, owners: dict[str, int]
) -> None:
    found = {
        name: {uid for path, uid in owners.items() if Path(path).is_relative_to(root / name)}
        for name in VOLUMES
    }
    assert found == {
        name: {c.POSTGRES_UID} if name == c.POSTGRES else {c.MUSTER_UID}
        for name in VOLUMES
        if name != c.AUTHORITY
    } | {c.AUTHORITY: set()}


def test_missing_volume_is_refused(root: Path) -> None:
    for path in sorted((root / "quota").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (root / "quota").rmdir()
    with pytest.raises(Refused, match="quota"):
        provision(root)


def services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return found


def test_init_mounts_the_volume_of_every_container() -> None:
    mounted = dict(reversed(each.split(":")) for each in services()["init"]["volumes"])
    assert sorted(mounted) == sorted(f"/volumes/{name}" for name in VOLUMES)
    for each in c.given():
        own = [
            text.removesuffix(":ro").split(":") for text in services()[each.container]["volumes"]
        ]
        assert [volume for volume, where in own if where == c.STATE] == [
            mounted[f"/volumes/{each.container}"]
        ], each.container


def test_only_init_mounts_the_authority() -> None:
    assert [
        name
        for name, each in services().items()
        if any("authority:" in text for text in each["volumes"])
    ] == ["init"]


def test_only_gateways_and_boards_publish_ports_on_loopback_by_default() -> None:
    found = {name: each["ports"] for name, each in services().items() if "ports" in each}
    published = {
        **dict.fromkeys(("gateway-a", "gateway-b"), "${MUSTER_PUBLISH:-127.0.0.1}:"),
        **dict.fromkeys(("prometheus", "grafana"), "${MUSTER_OBSERVE_PUBLISH:-127.0.0.1}:"),
    }
    assert list(found) == list(published)
    assert all(port.startswith(published[name]) for name, ports in found.items() for port in ports)


def test_the_profile_observe_reads_files_that_exist_and_knows_every_container() -> None:
    observed = {
        name: each for name, each in services().items() if each.get("profiles") == ["observe"]
    }
    assert sorted(observed) == ["collector", "grafana", "prometheus", "tempo"]
    named = {
        source
        for each in observed.values()
        for source in (volume.split(":")[0] for volume in each["volumes"])
        if source.startswith("./")
    }
    assert {"./prometheus", "./grafana"} < named
    own = [source for source in named if source.startswith("./observe")]
    assert own and all((ROOT / "deploy" / source).exists() for source in own)
    targets = [
        target.split(":")[0]
        for job in _observing("prometheus")["scrape_configs"]
        for static in job["static_configs"]
        for target in static["targets"]
    ]
    assert set(targets) - {"127.0.0.1"} <= set(services())
    assert {"gateway-a", "gateway-b", "node-4"} <= set(targets)
    spans = _observing("collector")["exporters"]["otlp/tempo"]["endpoint"]
    assert spans.split(":")[0] in observed and "collector" in observed
    assert _observing("tempo")["storage"]["trace"]["local"]["path"].startswith("/var/tempo")


def _observing(name: str) -> dict[str, Any]:
    path = ROOT / "deploy" / "observe" / f"{name}.yaml"
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def test_ports_for_other_machines_are_published_on_the_named_address_with_tls() -> None:
    listen: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "listen.yml").read_text())[
        "services"
    ]
    ports = {name: each["ports"] for name, each in listen.items() if "ports" in each}
    assert sorted(ports) == ["gateway-a", *c.SERVERS]
    assert all(
        port.startswith("${MUSTER_LISTEN}:") and port.endswith((":4222", ":8443"))
        for each in ports.values()
        for port in each
    )
    assert listen["gateway-a"]["environment"] == listen["gateway-b"]["environment"]
    assert set(listen) <= set(services())


def test_every_variable_of_the_containers_is_known() -> None:
    """The `.env` beside compose.yaml is read by the command too, and a name that it does not know
    stops it.
    """
    texts = [(ROOT / "deploy" / name).read_text() for name in ("docker-compose.yml", "listen.yml")]
    names = {name for text in texts for name in re.findall(r"\$\{(MUSTER_[A-Z0-9_]+)", text)}
    assert "MUSTER_LISTEN" in names
    assert names <= {*ELSEWHERE, *settings.environment(Settings())}


def test_every_container_is_read_only_unprivileged_and_has_bounded_logs() -> None:
    for name, each in services().items():
        assert (
            each["read_only"]
            and each["cap_drop"] == ["ALL"]
            and each["security_opt"] == ["no-new-privileges:true"]
        ), name
        assert each["logging"]["options"]["max-size"], name
        assert each.get("user") != "0" or name == "init"


def test_each_node_stores_its_tenants_user_ids_in_a_volume() -> None:
    nodes = {
        name: each
        for name, each in services().items()
        if "services.node_agent" in each.get("command", ())
    }
    assert len(nodes) == 6
    for name, each in nodes.items():
        assert each["environment"]["MUSTER_TENANT_UID_TABLE"] == "/state/tenant-uids.json"
        assert f"{name}:/state" in each["volumes"]


def test_every_running_container_is_restarted() -> None:
    once = [name for name, each in services().items() if each.get("restart") != "unless-stopped"]
    assert once == ["init", "cli", "key"]
