"""Choose the cluster and the key of a client: its arguments over the environment over the profile.

Tests: tests/unit/test_client_address.py.
"""

import os
from collections.abc import Mapping

from libs.client.profile import Profile
from libs.common.errors import Refused

URL: str = "MUSTER_URL"
KEY: str = "MUSTER_API_KEY"


def chosen(
    environ: Mapping[str, str],
    url: str | None,
    key: str | None,
    profile: str | os.PathLike[str] | None,
) -> dict[str, str]:
    """Return the environment with the arguments, which override it.

    A profile that was named is read without the address and the key of the environment. Raises
    Refused if a value is not valid.
    """
    found = dict(environ)
    if profile is not None:
        found.pop(URL, None)
        found.pop(KEY, None)
        found["MUSTER_PROFILE"] = os.fspath(profile)
    if url is not None:
        found[URL] = url
    if key is not None:
        if not key.isascii() or not key.isprintable():
            raise Refused("key: it contains characters that no key has; check what you pass")
        found[KEY] = key
    return found


def at_address(profile: Profile) -> Profile:
    """Return the profile of an address that an argument named."""
    return profile._replace(source="the argument url")
