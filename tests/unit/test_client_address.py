"""Which cluster and which key a client uses: arguments, then the environment, then the profile."""

import json
from pathlib import Path

import pytest

from libs.client.address import at_address, chosen, key_of_another
from libs.client.profile import Profile
from libs.common.errors import Refused

ENVIRON = {"MUSTER_URL": "http://env:1", "MUSTER_API_KEY": "k-env", "HOME": "/nowhere"}


def test_arguments_override_the_environment() -> None:
    assert chosen(ENVIRON, None, None, None) == ENVIRON
    found = chosen(ENVIRON, "http://a:2", "k-a", None)
    assert (found["MUSTER_URL"], found["MUSTER_API_KEY"]) == ("http://a:2", "k-a")


def test_a_named_profile_is_read_without_the_environments_address_and_key() -> None:
    found = chosen(ENVIRON, None, None, Path("p.json"))
    assert found == {"HOME": "/nowhere", "MUSTER_PROFILE": "p.json"}


@pytest.mark.parametrize("key", ["k\n", "schlüssel"])
def test_a_key_that_no_header_can_hold_is_refused(key: str) -> None:
    with pytest.raises(Refused, match="key"):
        chosen({}, None, key, None)


def test_the_key_of_a_profile_goes_to_its_own_address_only(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    environ = {"MUSTER_PROFILE": str(path)}
    assert key_of_another(environ, "http://a:1")
    path.write_text(json.dumps({"gateway": "http://a:1", "key": "k"}))
    assert not key_of_another(environ, "http://a:1/")
    assert key_of_another(environ, "http://b:1")
    assert not key_of_another({**environ, "MUSTER_API_KEY": "k-env"}, "http://b:1")


def test_an_address_from_an_argument_is_named_as_the_source() -> None:
    profile = Profile(url="http://a", key="k", source="x", user="ada", state="")
    assert at_address(profile, False) == profile._replace(source="the argument url")
    assert at_address(profile, True)[1:4] == ("", "the argument url", "")
