"""Where a start keeps its key: in the user's profile, unless that holds a login, which stays."""

import json
from pathlib import Path

import pytest

from libs.client.profile import kept_of
from libs.embedded import profile
from libs.embedded.shape import Shape

SHAPE = Shape(cluster_id="c", port=8081)
LOGIN = {"gateway": "https://lab.example.org", "key": "theirs", "user": "ada"}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "profile.json"
    monkeypatch.setenv("MUSTER_PROFILE", str(path))
    return path


def state(tmp_path: Path, name: str = "state") -> Path:
    path = tmp_path / name
    path.mkdir()
    return path


def test_start_reuses_the_key_in_the_users_profile(own: Path, tmp_path: Path) -> None:
    here = state(tmp_path)
    assert profile.known_key(here) == ""
    assert profile.write(here, SHAPE, "k") == own == profile.path_of(here)
    assert profile.known_key(here) == "k" and own.stat().st_mode & 0o777 == 0o600


def test_start_never_replaces_a_login(own: Path, tmp_path: Path) -> None:
    here = state(tmp_path)
    own.write_text(json.dumps(LOGIN))
    assert profile.known_key(here) == ""
    path = profile.write(here, SHAPE, "k")
    assert path == here / "profile.json" and json.loads(own.read_text()) == LOGIN
    found = kept_of(path)
    assert (
        found is not None
        and (found.url, found.key) == (SHAPE.gateway, "k")
        and path.stat().st_mode & 0o777 == 0o600
    )
    assert profile.known_key(here) == "k"


@pytest.mark.parametrize(
    "kept", ["", "{}", "{", '{"gateway": "http://127.0.0.1:8080", "key": "old", "state": "/gone"}']
)
def test_old_or_damaged_profile_is_replaced(own: Path, tmp_path: Path, kept: str) -> None:
    own.write_text(kept)
    assert (
        profile.write(state(tmp_path), SHAPE, "k") == own
        and json.loads(own.read_text())["key"] == "k"
    )
