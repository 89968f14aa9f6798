"""The endpoints of the OpenAI API: models from the fold, and the three that a replica answers.

This is raw ASGI behind the edge and in front of the other routes, because Starlette's own path
costs more than all of it. Every failure is an ApiError, rendered in one place.
"""

from typing import TYPE_CHECKING, Final

import msgspec
from starlette.types import Receive, Scope, Send

from libs.common.open_share import BUSY_S, TENANT_FULL, OpenShare
from services.api_gateway.access.roles import sees
from services.api_gateway.openai import errors, request
from services.api_gateway.openai.body import Kept, length_of, read_body
from services.api_gateway.openai.call import Call
from services.api_gateway.openai.catalogue import Served
from services.api_gateway.openai.dispatch import Dispatch
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.form_body import FormBody
from services.api_gateway.openai.form_space import FormSpace
from services.api_gateway.openai.multipart import boundary_of
from services.api_gateway.openai.names import adapter_name
from services.api_gateway.openai.request import RequestFields
from services.api_gateway.openai.routes import ROUTES
from services.api_gateway.times import rfc3339

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

MODELS: Final = "/v1/models"
MODEL: Final = "/v1/models/{id}"


def route_of(path: str) -> str | None:
    """Return the endpoint's template; None for a path that is not of this API."""
    if path in ROUTES or path == MODELS:
        return path
    return MODEL if path.startswith("/v1/models/") else None


class OpenAI:
    """The endpoints of one gateway."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.settings = gateway.settings
        self.dispatch = Dispatch(gateway)
        self.forms = FormSpace(self.settings.model_forms_bytes)
        self.open = OpenShare(self.settings.model_requests_max)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        try:
            if path in ROUTES:
                _check_method(scope, "POST")
                await self._complete(scope, receive, send, path)
            else:
                _check_method(scope, "GET", "HEAD")
                await answer(send, 200, self._models(scope, path))
        except ApiError as error:
            await answer(send, error.status, errors.render(error), *error.headers)

    def _models(self, scope: Scope, path: str) -> bytes:
        if path == MODELS:
            names = self.gateway.models.names(scope["principal"])
            shown = [_model_shown(name, served) for name, served in names]
            return msgspec.json.encode({"object": "list", "data": shown})
        name = path[len("/v1/models/") :]
        return msgspec.json.encode(_model_shown(name, self._served(scope, name)))

    def _served(self, scope: Scope, name: str) -> Served:
        """Return the model of a name. Raises ApiError 404."""
        served = self.gateway.models.find(scope["principal"], name)
        if served is None:
            if (other := self.gateway.models.get(name)) is not None:
                scope["denied"] = f"the model belongs to tenant {other.tenant}"
            raise ApiError(404, self._why_not(scope, name), "model_not_found", "model")
        scope["model"] = (
            adapter_name(served.name, served.adapter) if served.adapter else served.name
        )
        return served

    def _why_not(self, scope: Scope, name: str) -> str:
        """Return why the principal has no model of this name."""
        hidden = self.gateway.models.hidden(scope["principal"], name)
        if hidden is None:
            return f"the model {name[:64]!r} does not exist or you do not have access to it"
        return (
            f"tenant {scope['principal'].tenant} undeployed its model {name[:64]!r}, and until "
            f"{rfc3339(hidden.until_ns)} no request goes to the model {hidden.model!r} instead, "
            "which has the same name and is shared with all: deploy yours again, use a name of "
            f"{hidden.model!r} that yours did not have, or wait"
        )

    async def _complete(self, scope: Scope, receive: Receive, send: Send, path: str) -> None:
        tenant: str = scope["principal"].tenant
        if refused := self.open.take(tenant):
            raise self._too_many(tenant, refused)
        kept = Kept(self.gateway.shares.bytes, tenant)
        try:
            if ROUTES[path].takes_form and (form := self._form(scope, receive)) is not None:
                await self._pass_form(scope, form, send, path, kept)
                return
            body = await read_body(
                scope,
                receive,
                bytes_max=self.settings.model_body_bytes,
                within_s=self.settings.model_body_ms / 1_000,
                kept=kept,
            )
            if body is None:
                return
            call = self._call(scope, send, path, request.read(body), body)
            call.kept = kept
            await self.dispatch.run(call, scope["principal"], receive)
            await call.close()
        finally:
            kept.close()
            self.open.give_back(tenant)

    def _too_many(self, tenant: str, refused: str) -> ApiError:
        """Return the error for a request beyond the bound of open requests."""
        if refused == TENANT_FULL:
            text = (
                f"tenant {tenant} has {self.open.of_tenant[tenant]} requests open, most of what "
                "this gateway has left: wait until some of them have ended"
            )
            return ApiError(429, text, "overloaded", retry_after_s=BUSY_S)
        text = (
            f"this gateway has {self.open.held} requests open, the maximum: try again in a moment"
        )
        return ApiError(503, text, "overloaded", retry_after_s=BUSY_S)

    def _call(
        self,
        scope: Scope,
        send: Send,
        path: str,
        fields: RequestFields,
        body: bytes,
        form: FormBody | None = None,
    ) -> Call:
        served = self._served(scope, fields.model)
        call = Call(
            scope=scope,
            send=send,
            path=path,
            fields=fields,
            model=served.name,
            body=body,
            answer_bytes_max=self.settings.model_answer_bytes,
            form=form,
            adapter=served.adapter,
        )
        call.is_guest = not sees(scope["principal"], served.tenant)
        return call

    def _form(self, scope: Scope, receive: Receive) -> FormBody | None:
        """Return the request's body if it is a form."""
        given: bytes = scope["header"].get(b"content-type", b"")
        if (boundary := boundary_of(given)) is None:
            return None
        return FormBody(
            receive=receive,
            content_type=given,
            boundary=boundary,
            length=length_of(scope),
            bytes_max=self.settings.model_form_bytes,
            within_s=self.settings.model_body_ms / 1_000,
            space=self.forms,
            tenant=scope["principal"].tenant,
        )

    async def _pass_form(
        self, scope: Scope, form: FormBody, send: Send, path: str, kept: Kept
    ) -> None:
        try:
            name = await form.model()
            if name is None:
                return
            call = self._call(scope, send, path, RequestFields(name), b"", form)
            call.kept = kept
            await self.dispatch.run(call, scope["principal"], form.watch)
            await call.close()
        finally:
            form.close()


def _model_shown(name: str, served: Served) -> dict[str, object]:
    shown: dict[str, object] = {
        "id": name,
        "object": "model",
        "created": served.created_s,
        "owned_by": served.tenant,
    }
    return {**shown, "parent": served.name} if served.adapter else shown


def _check_method(scope: Scope, *allowed: str) -> None:
    if scope["method"] not in allowed:
        error = ApiError(
            405, f"{scope['method']} is not accepted here: use {allowed[0]}", "method_not_allowed"
        )
        error.headers.append((b"allow", ", ".join(allowed).encode()))
        raise error


async def answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    fixed = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body, "more_body": False})
