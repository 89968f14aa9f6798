"""Which cluster and which key a client uses: arguments, then the environment, then the profile."""

from pathlib import Path

import pytest

from libs.client.address import at_address, chosen
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


def test_an_address_from_an_argument_is_named_as_the_source() -> None:
    profile = Profile(url="http://a", key="k", source="x", user="ada", state="")
    assert at_address(profile) == profile._replace(source="the argument url")
