"""An OpenID Connect provider in a process of its own, which lies when a test tells it to.

It knows authorization codes with PKCE, device codes, one client with a secret, and user
information. `POST /control` sets its users' claims and its lies. It asks for no password: the
user of the control signs in at once.
"""

import asyncio
import base64
import hashlib
import hmac
import json
import secrets
import sys
import time
from typing import Any, Final
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jwt
from joserfc.jwk import OctKey, RSAKey

CLIENT: Final = "muster"
SECRET: Final = "client secret/with:signs"  # nosec B105


class Provider:
    """One provider. `lies` are what its identity tokens hold instead of the truth."""

    def __init__(self) -> None:
        self.issuer = ""
        self.claims: dict[str, Any] = {}
        self.lies: dict[str, Any] = {}
        self.keys = [RSAKey.generate_key(2048, {"kid": "first", "use": "sig"})]
        self.hidden_keys = 0
        self.codes: dict[str, dict[str, str]] = {}
        self.devices: dict[str, str] = {}
        self.keys_read = 0
        self.exchanges = 0

    def app(self) -> web.Application:
        app = web.Application()
        routes = {
            ("GET", "/.well-known/openid-configuration"): self.description,
            ("GET", "/keys"): self.jwks,
            ("GET", "/authorize"): self.authorize,
            ("POST", "/token"): self.token,
            ("GET", "/userinfo"): self.userinfo,
            ("POST", "/device"): self.device,
            ("POST", "/control"): self.control,
        }
        for (method, path), handler in routes.items():
            app.router.add_route(method, path, handler)
        return app

    async def description(self, request: web.Request) -> web.Response:
        found = {
            "issuer": self.lies.get("issuer", self.issuer),
            "authorization_endpoint": f"{self.issuer}/authorize?kind=page",
            "token_endpoint": f"{self.issuer}/token",
            "jwks_uri": f"{self.issuer}/keys",
            "userinfo_endpoint": f"{self.issuer}/userinfo",
            "device_authorization_endpoint": f"{self.issuer}/device",
        }
        return web.json_response(found)

    async def jwks(self, request: web.Request) -> web.Response:
        self.keys_read += 1
        keys = [key.as_dict(private=False) for key in self.keys]
        # A key that anybody knows, as a careless provider may publish.
        keys.append({"kty": "oct", "kid": "shared", "k": "c2hhcmVk", "use": "sig"})
        return web.json_response({"keys": keys})

    async def authorize(self, request: web.Request) -> web.Response:
        asked = dict(request.query)
        assert (asked["client_id"], asked["response_type"]) == (CLIENT, "code")
        assert asked["kind"] == "page" and asked["code_challenge_method"] == "S256"
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "session_state": "x"}
        if "error" in self.lies:
            answer = {"error": self.lies["error"], "state": asked["state"]}
        raise web.HTTPFound(f"{asked['redirect_uri']}?{urlencode(answer)}")

    async def token(self, request: web.Request) -> web.Response:
        form, pair = await request.post(), request.headers.get("authorization", "")
        expected = base64.b64encode(b"muster:client%20secret%2Fwith%3Asigns").decode()
        if pair != f"Basic {expected}":
            return self.failed("invalid_client")
        self.exchanges += 1
        if form["grant_type"] == "authorization_code":
            return self.from_code(form)
        state = self.devices.get(str(form["device_code"]), "expired_token")
        if state != "entered":
            return self.failed(state)
        del self.devices[str(form["device_code"])]
        return self.tokens("")

    def from_code(self, form: Any) -> web.Response:
        asked = self.codes.pop(str(form["code"]), None)
        challenge = hashlib.sha256(str(form["code_verifier"]).encode()).digest()
        if (
            asked is None
            or asked["redirect_uri"] != form["redirect_uri"]
            or base64.urlsafe_b64encode(challenge).rstrip(b"=").decode() != asked["code_challenge"]
        ):
            return self.failed("invalid_grant")
        return self.tokens(asked["nonce"])

    def tokens(self, nonce: str) -> web.Response:
        now = int(time.time())
        claims = {
            "iss": self.issuer,
            "sub": "user-1",
            "aud": CLIENT,
            "iat": now,
            "exp": now + 300,
            **({"nonce": nonce} if nonce else {}),
            **{name: value for name, value in self.claims.items() if name != "userinfo"},
            **self.lies.get("claims", {}),
        }
        for name in self.lies.get("without", ()):
            claims.pop(name, None)
        return web.json_response(
            {"access_token": "access", "token_type": "Bearer", "id_token": self.signed(claims)}
        )

    def signed(self, claims: dict[str, Any]) -> str:
        how = self.lies.get("signed", "")
        if how == "none":
            parts = ({"alg": "none"}, claims)
            return ".".join(map(_text, parts)) + "."
        if how == "shared":
            key = OctKey.import_key({"kty": "oct", "kid": "shared", "k": "c2hhcmVk"})
            return jwt.encode({"alg": "HS256", "kid": "shared"}, claims, key)
        if how == "public key as secret":
            said = f"{_text({'alg': 'HS256', 'kid': self.keys[-1].kid})}.{_text(claims)}"
            mark = hmac.digest(self.keys[-1].as_pem(private=False), said.encode(), "sha256")
            return f"{said}.{base64.urlsafe_b64encode(mark).rstrip(b'=').decode()}"
        if how == "foreign key":
            key = RSAKey.generate_key(2048, {"kid": self.keys[-1].kid})
            return jwt.encode({"alg": "RS256", "kid": self.keys[-1].kid}, claims, key)
        token = jwt.encode({"alg": "RS256", "kid": self.keys[-1].kid}, claims, self.keys[-1])
        if how == "changed":
            head, body, mark = token.split(".")
            told = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
            return f"{head}.{_text({**told, 'groups': ['gpu-admins']})}.{mark}"
        return token

    async def userinfo(self, request: web.Request) -> web.Response:
        assert request.headers["authorization"] == "Bearer access"
        return web.json_response({"sub": "user-1", **self.claims.get("userinfo", {})})

    async def device(self, request: web.Request) -> web.Response:
        code = secrets.token_urlsafe(16)
        self.devices[code] = "authorization_pending"
        answer = {
            "device_code": code,
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.issuer}/enter",
            "verification_uri_complete": f"{self.issuer}/enter?code=WDJB-MJHT",
            "expires_in": 300,
            "interval": 1,
        }
        return web.json_response(answer)

    def failed(self, error: str) -> web.Response:
        return web.json_response({"error": error}, status=400)

    async def control(self, request: web.Request) -> web.Response:
        told = await request.json()
        self.claims = told.get("claims", self.claims)
        self.lies = told.get("lies", {})
        if told.get("rotate"):
            self.keys = [RSAKey.generate_key(2048, {"kid": secrets.token_hex(4), "use": "sig"})]
        if "device" in told:
            self.devices = dict.fromkeys(self.devices, told["device"])
        return web.json_response({"keys_read": self.keys_read, "exchanges": self.exchanges})


def _text(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


async def main() -> None:
    provider = Provider()
    runner = web.AppRunner(provider.app())
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", int(sys.argv[1]))
    await site.start()
    port = runner.addresses[0][1]
    provider.issuer = f"http://127.0.0.1:{port}"
    print(provider.issuer, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
