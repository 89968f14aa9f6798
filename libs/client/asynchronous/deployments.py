"""Models: deploy, read, list, scale, replace, undeploy.

Requests to models go through OpenAI's client: docs/openai.md. Tests:
tests/integration/test_client_resources.py.
"""

import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from libs.client import calls, fields, timing
from libs.client.asynchronous import uploads
from libs.client.asynchronous.connection import AsyncConnection
from libs.client.asynchronous.pages import pages
from libs.client.asynchronous.pauses import pause
from libs.client.errors import TimedOut
from libs.client.models.deployments import ModelShown
from libs.client.models.jobs import Why


class AsyncModels:
    """The models of the tenant, and those that are shared with it."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def deploy(
        self,
        name: str,
        command: str | Sequence[str] = (),
        *,
        replicas: int | None = None,
        gpus: float | None = None,
        image: str | None = None,
        upload: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        idempotency_key: str | None = None,
        **more: object,
    ) -> ModelShown:
        """Serve a model: run replicas of a command that answers HTTP on {port}.

        `more` are all other fields of `POST /v1/deployments`, for example `health_path`, `scaling`
        and `secrets`. Raises Conflict if the name is in use, InvalidRequest with the wrong field.
        """
        given = {"name": name, "replicas": replicas, "image": image, "env": env, **more}
        body = await self._body(command, gpus, upload, given)
        key = idempotency_key or uuid.uuid4().hex
        call = calls.changing("POST", calls.path_of("deployments"), body, key=key)
        return await self._connection.ask(call, ModelShown)

    async def redeploy(
        self,
        name: str,
        command: str | Sequence[str] = (),
        *,
        gpus: float | None = None,
        upload: str | Path | None = None,
        **more: object,
    ) -> ModelShown:
        """Replace all replicas, one after the other; what is left out stays as it is."""
        body = await self._body(command, gpus, upload, more)
        call = calls.changing("POST", calls.path_of("deployments", name, "redeploy"), body)
        return await self._connection.ask(call, ModelShown)

    async def _body(
        self,
        command: str | Sequence[str],
        gpus: float | None,
        upload: str | Path | None,
        given: Mapping[str, object],
    ) -> dict[str, object]:
        body = fields.job_body(command=command, gpus=gpus, given=given)
        if not body["command"]:
            del body["command"]
        if upload is not None:
            body["upload"] = await uploads.sent(self._connection, upload)
        return self._connection.by_user(body)

    async def get(self, name: str) -> ModelShown:
        """Return a model with its replicas and its queue. Raises NotFound."""
        call = calls.reading(calls.path_of("deployments", name))
        return await self._connection.ask(call, ModelShown)

    def list(self, *, all: bool = False) -> AsyncIterator[ModelShown]:
        """Return the models by name; `all`: also those that were undeployed."""
        query = {"all": all or None}
        return pages(
            self._connection, calls.path_of("deployments"), "deployments", ModelShown, query
        )

    async def scale(self, name: str, replicas: int) -> ModelShown:
        """Change the number of replicas."""
        body = self._connection.by_user({"replicas": replicas})
        path = calls.path_of("deployments", name)
        call = calls.changing("PATCH", path, body, repeatable=True)
        return await self._connection.ask(call, ModelShown)

    async def wait_ready(
        self, name: str, replicas: int = 1, timeout_s: float | None = None
    ) -> ModelShown:
        """Wait until that many replicas serve. Raises TimedOut with the reason for the delay."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            shown = await self.get(name)
            if shown.ready >= replicas:
                return shown
            if until is not None and time.monotonic() >= until:
                raise TimedOut(
                    f"model {name} has {shown.ready} of {replicas} ready replicas after "
                    f"{timeout_s:g} s: {(await self.why(name)).answer}"
                )
            await pause(timing.LOOK_S)

    async def why(self, name: str) -> Why:
        """Explain the state of a model."""
        return await self._connection.ask(
            calls.reading(calls.path_of("deployments", name, "why")), Why
        )

    async def undeploy(self, name: str) -> ModelShown:
        """End all replicas. The list of all models shows the model for at least an hour."""
        call = calls.changing(
            "DELETE",
            calls.path_of("deployments", name),
            self._connection.by_user({}),
            repeatable=True,
        )
        return await self._connection.ask(call, ModelShown)
