"""Requests to the identity provider: its description, its keys, codes and device codes.

The description and the keys are kept for a while. A token with an unknown key makes the gateway
read the keys again, not more often than every KEYS_AGAIN_NS. Tests:
tests/integration/test_sign_on.py.
"""

import asyncio
import base64
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec

from libs.common.errors import Unavailable
from libs.common.process.clock import Clock
from libs.common.settings.settings import Settings
from services.api_gateway.problems import Denied, Problem

if TYPE_CHECKING:
    from joserfc.jwk import KeySet

ANSWER_BYTES_MAX: Final = 1 << 20
# Requests to the provider at one time; further ones are refused. Command lines that ask for their
# user's sign-on take half of them, so that browsers get theirs.
ASKS_MAX: Final = 32
POLLS_AT_ONCE: Final = ASKS_MAX // 2
KEPT_NS: Final = 3_600_000_000_000
KEYS_AGAIN_NS: Final = 10_000_000_000
NS: Final = 1_000_000_000
DEVICE_GRANT: Final = "urn:ietf:params:oauth:grant-type:device_code"
LOCAL: Final = ("127.0.0.1", "localhost", "::1")

Json = Mapping[str, Any]


class Provider:
    """The identity provider of the settings. All methods raise Unavailable if it does not answer.

    `is_configured` is false without MUSTER_OIDC_ISSUER.
    """

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self.settings = settings
        self.clock = clock
        self.issuer = settings.oidc_issuer
        self._session: aiohttp.ClientSession | None = None
        self._asks = 0
        self._described: Json = {}
        self._described_ns = 0
        self._keys: KeySet | None = None
        self._keys_ns = 0
        self._keys_lock = asyncio.Lock()

    @property
    def is_configured(self) -> bool:
        return bool(self.issuer)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def endpoint(self, name: str) -> str:
        """Return the address of an endpoint. Raises Problem 404 if the provider has none."""
        url = (await self._description()).get(name)
        if not isinstance(url, str):
            raise Problem(404, f"the identity provider {self.issuer} has no {name}")
        self._check_scheme(url)
        return url

    async def exchanged(self, code: str, verifier: str, redirect_uri: str) -> Json:
        """Return the tokens for a code. Raises Denied 401 if the provider refuses it."""
        fields = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect_uri,
            "code_verifier": verifier,
        }
        status, answer = await self._post("token_endpoint", fields)
        if status != 200:
            raise self._refusal(answer)
        return answer

    async def device_begun(self) -> Json:
        """Return a new device code and what the user must be told (RFC 8628, section 3.2)."""
        fields = {"scope": self.settings.oidc_scopes}
        status, answer = await self._post("device_authorization_endpoint", fields)
        if status != 200:
            raise self._refusal(answer)
        return answer

    async def device_polled(self, device_code: str) -> tuple[str, Json]:
        """Return "" and the tokens, or why there are none yet: `authorization_pending` or
        `slow_down`.

        Raises Denied 401 if the user refused or the code has expired.
        """
        fields = {"grant_type": DEVICE_GRANT, "device_code": device_code}
        status, answer = await self._post("token_endpoint", fields, POLLS_AT_ONCE)
        if status == 200:
            return "", answer
        if answer.get("error") in ("authorization_pending", "slow_down"):
            return str(answer["error"]), {}
        raise self._refusal(answer)

    async def claims(self, tokens: Json, nonce: str | None) -> Json:
        """Return the verified claims of the identity token.

        Groups that are not in it come from the user-information endpoint. Raises Denied 401.
        """
        token = tokens.get("id_token")
        if not isinstance(token, str):
            raise Denied(401, "the identity provider sent no identity token: ask for scope openid")
        claims = await self._verified(token, nonce)
        access, group = tokens.get("access_token"), self.settings.oidc_groups_claim.split(".")[0]
        description = await self._description()
        if group in claims or not isinstance(access, str):
            return claims
        if not isinstance(description.get("userinfo_endpoint"), str):
            return claims
        headers = {"authorization": f"Bearer {access}"}
        _, more = await self._ask("GET", await self.endpoint("userinfo_endpoint"), headers=headers)
        return {**more, **claims} if more.get("sub") == claims["sub"] else claims

    async def _verified(self, token: str, nonce: str | None) -> Json:
        # Imported here, because a gateway without a provider does not need it at its start.
        from services.api_gateway.sign_on import identity_token

        for again in (False, True):
            keys = await self._read_keys(again)
            try:
                return identity_token.claims_of(
                    token,
                    keys,
                    issuer=self.issuer,
                    client_id=self.settings.oidc_client_id,
                    now_s=self.clock.wall_ns() // NS,
                    nonce=nonce,
                )
            except identity_token.UnknownKey:
                continue
        raise Denied(
            401,
            "the identity token is not accepted: no key of the provider signed it: sign in again",
        )

    async def _read_keys(self, again: bool) -> "KeySet":
        """Return the provider's keys; `again`: read them even if some are known."""
        from services.api_gateway.sign_on import identity_token

        async with self._keys_lock:
            age_ns = self.clock.boot_ns() - self._keys_ns
            limit_ns = KEYS_AGAIN_NS if again else KEPT_NS
            if self._keys is None or age_ns >= limit_ns:
                status, document = await self._ask("GET", await self.endpoint("jwks_uri"))
                try:
                    self._keys = identity_token.usable_keys(document if status == 200 else None)
                except ValueError as error:
                    raise self._unavailable(f"its keys cannot be read: {error}") from error
                self._keys_ns = self.clock.boot_ns()
            return self._keys

    async def _description(self) -> Json:
        """Return the provider's description (OpenID Connect Discovery)."""
        now_ns = self.clock.boot_ns()
        if not self._described or now_ns - self._described_ns >= KEPT_NS:
            self._check_scheme(self.issuer)
            url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
            status, found = await self._ask("GET", url)
            if status != 200 or found.get("issuer") != self.issuer:
                raise self._unavailable(
                    f"{url} answered {status} and does not describe this issuer: check "
                    "MUSTER_OIDC_ISSUER"
                )
            self._described, self._described_ns = found, now_ns
        return self._described

    async def _post(
        self, endpoint: str, fields: dict[str, str], most: int = ASKS_MAX
    ) -> tuple[int, Json]:
        """Send a form as this client, with its secret if it has one. `most`: see `_ask`."""
        url, client_id = await self.endpoint(endpoint), self.settings.oidc_client_id
        secret = self._secret()
        if not secret:
            return await self._ask("POST", url, {**fields, "client_id": client_id}, most=most)
        pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}".encode()
        headers = {"authorization": f"Basic {base64.b64encode(pair).decode()}"}
        return await self._ask("POST", url, fields, headers, most)

    def _secret(self) -> str:
        path = self.settings.oidc_client_secret_file
        try:
            return Path(path).read_text().strip() if path else ""
        except (OSError, UnicodeDecodeError) as error:
            raise Unavailable(
                f"the client's secret {path} cannot be read ({error}): check "
                "MUSTER_OIDC_CLIENT_SECRET_FILE"
            ) from error

    async def _ask(
        self,
        method: str,
        url: str,
        fields: dict[str, str] | None = None,
        headers: dict[str, str] | None = None,
        most: int = ASKS_MAX,
    ) -> tuple[int, Json]:
        """Return the status and the JSON object of an answer.

        Refused while `most` requests are under way.
        """
        if self._asks >= most:
            raise self._unavailable("too many sign-ons wait for it")
        self._asks += 1
        try:
            async with self._http().request(
                method,
                url,
                data=fields,
                headers={"accept": "application/json", **(headers or {})},
                allow_redirects=False,
            ) as response:
                data = await response.content.read(ANSWER_BYTES_MAX + 1)
                while len(data) <= ANSWER_BYTES_MAX and not response.content.at_eof():
                    data += await response.content.read(ANSWER_BYTES_MAX)
                if len(data) > ANSWER_BYTES_MAX:
                    raise self._unavailable("its answer is too large")
                return response.status, msgspec.json.decode(data, type=dict[str, Any])
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(str(error) or type(error).__name__) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise self._unavailable("its answer is no JSON object") from error
        finally:
            self._asks -= 1

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self.settings.oidc_answer_ms / 1_000),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session

    def _check_scheme(self, url: str) -> None:
        """Refuse addresses without TLS, except on this machine."""
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOCAL):
            raise self._unavailable(f"{url[:256]} is not an https address")

    def _refusal(self, answer: Json) -> Denied:
        reason = answer.get("error_description") or answer.get("error") or "no reason was given"
        return Denied(
            401,
            f"the identity provider refused the sign-on: {str(reason)[:256]}: sign in again",
        )

    def _unavailable(self, reason: str) -> Unavailable:
        return Unavailable(
            f"the identity provider {self.issuer} cannot be used ({reason[:512]}): sign in with an "
            "API key, or try again later"
        )
