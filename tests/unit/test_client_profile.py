"""The gateway's address and key: environment, then profile, then default."""

import json
import tomllib
from pathlib import Path

import pytest

from libs.client.profile import DEFAULT_URL, away_s, profile_path, read_profile
from libs.common.errors import Refused


def written(path: Path, value: object) -> dict[str, str]:
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return {"MUSTER_PROFILE": str(path), "USER": "ada"}


def test_the_profile_is_used(tmp_path: Path) -> None:
    profile = read_profile(
        written(tmp_path / "p.json", {"gateway": "http://h:1/", "key": "k", "state": "/s"})
    )
    assert profile == ("http://h:1", "k", str(tmp_path / "p.json"), "ada", "/s", "")


def test_the_environment_overrides_the_profile(tmp_path: Path) -> None:
    environ = written(tmp_path / "p.json", {"gateway": "http://h:1", "key": "k"})
    profile = read_profile({**environ, "MUSTER_URL": "https://x", "MUSTER_API_KEY": "other"})
    assert (profile.url, profile.key, profile.source) == ("https://x", "other", "MUSTER_URL")


def test_the_key_of_a_profile_goes_to_its_own_address_only(tmp_path: Path) -> None:
    environ = written(tmp_path / "p.json", {"gateway": "http://h:1", "key": "k", "user": "ada"})
    for own in ("http://h:1", "http://h:1/"):
        assert read_profile({**environ, "MUSTER_URL": own})[1:4] == ("k", "MUSTER_URL", "ada")
    for other in ("http://evil:1", "https://h:1", "http://h:1@evil"):
        assert read_profile({**environ, "MUSTER_URL": other})[1:4] == ("", "MUSTER_URL", "")


def test_without_a_profile_the_default_address_applies(tmp_path: Path) -> None:
    assert (
        read_profile({"MUSTER_PROFILE": str(tmp_path / "none"), "USER": "ada"}).url == DEFAULT_URL
    )


@pytest.mark.parametrize("value", ["{", "[1]"])
def test_an_invalid_profile_is_refused_by_name(tmp_path: Path, value: str) -> None:
    with pytest.raises(Refused, match=r"p\.json.*muster up"):
        read_profile(written(tmp_path / "p.json", value))


def test_the_profile_is_in_the_configuration_directory() -> None:
    assert profile_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/muster/profile.json")


def test_a_setting_limits_how_long_a_gateway_is_retried() -> None:
    assert (away_s({}), away_s({"MUSTER_AWAY_S": "5"}), away_s({"MUSTER_AWAY_S": "0"})) == (
        120.0,
        5.0,
        0.0,
    )
    with pytest.raises(Refused, match="use a whole number of seconds"):
        away_s({"MUSTER_AWAY_S": "2m"})


def test_muster_and_gpu_platform_are_the_same_program() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "scripts"
    ]
    assert scripts == dict.fromkeys(("muster", "gpu-platform"), "libs.cli.main:main")
