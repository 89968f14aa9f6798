"""A sign-on under way, and the session that it ends with.

The gateway keeps nothing between the two requests of a sign-on: the browser carries a sealed
record in a cookie, the command line carries the sealed device code. So any gateway can continue.
Tests: tests/integration/test_sign_on.py.
"""

import hashlib
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit, urlunsplit

from libs.common.errors import Refused
from libs.common.process.clock import Clock
from libs.common.settings.settings import Settings
from libs.common.state.cluster import Cluster
from services.api_gateway.access.roles import Principal
from services.api_gateway.access.sessions import (
    LINKS_MAX,
    NS,
    POLLS_MAX,
    SIGN_ONS_MAX,
    MinuteBudget,
    Session,
)
from services.api_gateway.intents.identity_intents import known_tenant
from services.api_gateway.problems import Denied
from services.api_gateway.sign_on.groups import Rule, admitting, groups_in, parse, user_in
from services.api_gateway.sign_on.provider import Provider

SIGN_ON: Final = "sign-on"
DEVICE: Final = "device"
COOKIE: Final = "muster_sign_on"
CALLBACK: Final = "/v1/session/oidc/callback"
SIGN_ON_S: Final = 600
NEXT_MAX: Final = 512
# A path of this gateway: not `//host` or `/\\host`, which browsers read as addresses of others.
NEXT: Final = re.compile(r"/(?![/\\])[\x21-\x5b\x5d-\x7e]*", re.ASCII)


class Groups:
    """The rules of the file MUSTER_OIDC_GROUPS_FILE, read again when it changes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.rules: dict[str, Rule] = {}
        self._stamp = (0, 0)
        self.refresh()

    def refresh(self) -> None:
        """Read the file if it changed. Raises Refused if it is not valid."""
        if not self.path:
            return
        try:
            status = Path(self.path).stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if stamp != self._stamp:
                self.rules = parse(Path(self.path).read_text())
                self._stamp = stamp
        except (OSError, UnicodeDecodeError, Refused) as error:
            raise Refused(
                f"the groups {self.path} cannot be read: {error}: check MUSTER_OIDC_GROUPS_FILE"
            ) from error

    def principal(self, session: Session, cluster: Cluster) -> Principal | str:
        """Return the principal of a session, or why it is not accepted any more."""
        rule = self.rules.get(session.group)
        if rule is None:
            return f"the group {session.group} of the session has no rule any more"
        if known_tenant(cluster, rule.tenant) is None:
            return f"the tenant {rule.tenant} of the session does not exist"
        return Principal(key_id_of(session.subject), rule.tenant, session.user, rule.role)

    def source(self, claims: Mapping[str, Any], user_claim: str, groups_claim: str) -> Session:
        """Return what the user's session is made from. Raises Denied 403."""
        user = user_in(claims, user_claim)
        rule = admitting(self.rules, groups_in(claims, groups_claim))
        if rule is None:
            raise Denied(
                403,
                f"{user} is in none of the groups that this cluster admits: ask an administrator "
                "to add a rule to MUSTER_OIDC_GROUPS_FILE",
            )
        subject = f"{claims['iss']} {claims['sub']}"
        return Session(purpose="", until_ns=0, group=rule.group, user=user, subject=subject)


def key_id_of(subject: str) -> str:
    """Return the public id that stands in records in the place of a key's id."""
    return f"sso-{hashlib.sha256(subject.encode()).hexdigest()[:10]}"


def checked_next(text: str) -> str:
    """Return the path to go to after the sign-on. Raises Refused if it is not a path here."""
    if len(text) > NEXT_MAX or not NEXT.fullmatch(text):
        raise Refused(
            f"next: {text[:64]!r} is not a path of this gateway: give one that begins with one '/'"
        )
    return text


class SignOn:
    """Everything that signing in needs, of one gateway."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.groups = Groups(settings.oidc_groups_file)
        self.provider = Provider(settings, clock)
        self.links = MinuteBudget(LINKS_MAX)
        self.begun = MinuteBudget(SIGN_ONS_MAX)
        self.polled = MinuteBudget(POLLS_MAX)


class Begun:
    """The secrets of a new sign-on: state, nonce and the verifier of PKCE."""

    def __init__(self) -> None:
        self.state = secrets.token_urlsafe(24)
        self.nonce = secrets.token_urlsafe(24)
        self.verifier = secrets.token_urlsafe(48)

    def record(self, path: str, redirect_uri: str, now_ns: int) -> Session:
        """Return the record that the browser carries. `once` is the state."""
        return Session(
            purpose=SIGN_ON,
            until_ns=now_ns + SIGN_ON_S * NS,
            once=self.state,
            more={
                "nonce": self.nonce,
                "verifier": self.verifier,
                "redirect_uri": redirect_uri,
                "next": path,
            },
        )

    def address(self, endpoint: str, client_id: str, scopes: str, redirect_uri: str) -> str:
        """Return the provider's address to which the browser goes."""
        challenge = hashlib.sha256(self.verifier.encode()).digest()
        fields = {
            "response_type": "code",
            "client_id": client_id,
            "redirect_uri": redirect_uri,
            "scope": scopes,
            "state": self.state,
            "nonce": self.nonce,
            "code_challenge": urlsafe_b64encode(challenge).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        parts = urlsplit(endpoint)
        query = "&".join(filter(None, (parts.query, urlencode(fields))))
        return urlunsplit(parts._replace(query=query, fragment=""))
