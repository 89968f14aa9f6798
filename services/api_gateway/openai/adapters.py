"""Loads LoRA adapters at replicas, by the interfaces of vLLM and of SGLang.

An adapter is loaded when the first request to it has a replica, so a replica that was started again
gets its adapters as they are used. One adapter at a time is loaded at a replica. Other gateways
load and unload too: "already loaded" is success, and a replica that lost an adapter loads it again.
The rules are services/api_gateway/serving/adapters.py. Tests:
tests/integration/test_openai_adapters.py.
"""

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import aiohttp
import msgspec
from multidict import CIMultiDict

from libs.common.adapters import NONE, SGLANG, is_below
from libs.common.state.cluster import Endpoint
from services.api_gateway.openai import errors
from services.api_gateway.openai.call import CLIENT_ERROR, Call
from services.api_gateway.openai.catalogue import AdapterServed
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.guard import Guard
from services.api_gateway.openai.model_request import Request
from services.api_gateway.openai.replica_exchange import Answered
from services.api_gateway.openai.replica_failure import ReplicaFailed
from services.api_gateway.openai.upstream import FAILURES, describe
from services.api_gateway.serving.adapters import Wanted

if TYPE_CHECKING:
    from services.api_gateway.openai.model_queue import ModelQueue

# Bytes of an answer about an adapter that are read.
ANSWER_BYTES_MAX: Final = 64 << 10
# Retry-After for an adapter that was not loaded in time.
RETRY_S: Final = 5
FAILED: Final = "adapter_failed"
# In answers of vLLM ("has already been loaded") and of SGLang ("already exists").
ALREADY: Final = b"already"
# In answers to requests: vLLM answers 404 with the name, SGLang 400 with these words.
MISSING: Final = 404
NOT_LOADED: Final = b"not loaded"
LOST: Final = (400, MISSING)


class Api(NamedTuple):
    """The paths at which a server loads and unloads adapters."""

    load: str
    unload: str


V1: Final = Api("/v1/load_lora_adapter", "/v1/unload_lora_adapter")
SGLANG_API: Final = Api("/load_lora_adapter", "/unload_lora_adapter")


class NotLoaded(ReplicaFailed):
    """A replica could not load an adapter. It serves other requests as before."""

    is_spared = True

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.message, is_free=True)
        self.error = error


class ModelAdapters:
    """The adapters of one model's replicas."""

    def __init__(self, queue: "ModelQueue") -> None:
        self.queue = queue
        self.load_s = queue.gateway.settings.model_adapter_ms / 1_000
        self._locks: dict[Endpoint, asyncio.Lock] = {}
        self._tidying: asyncio.Task[None] | None = None

    def wanted(self, call: Call) -> Wanted | None:
        """Return the adapter that a replica must have for the call; None if its server has it.

        Raises ApiError 404 if the adapter was removed meanwhile.
        """
        adapter = self._served(call.adapter)
        self.queue.rules.residency.resident_max = adapter.rules.resident_max
        return Wanted(call.adapter, adapter.seq) if adapter.rules.api != NONE else None

    def known_as(self, call: Call, endpoint: Endpoint) -> str:
        """Return the adapter's name in a request to the replica."""
        models = self.queue.gateway.models
        adapter = models.adapter(call.model, call.adapter)
        if adapter is not None and adapter.rules.api == SGLANG:
            return f"{models.expects(call.model, endpoint)}:{call.adapter}"
        return call.adapter

    async def ready(self, request: Request, endpoint: Endpoint, guard: Guard) -> None:
        """Wait until the replica has the adapter of the request, which is bound to it.

        Raises NotLoaded or ReplicaFailed; then the request is not bound any more.
        """
        queue, wanted = self.queue, request.ticket.adapter
        if wanted is None:
            return
        is_ready = False
        try:
            await self.load(wanted, endpoint, guard)
            is_ready = True
        except (NotLoaded, ApiError):
            queue.failed(request, is_tried=False)
            request.ticket.tried = (*request.ticket.tried, endpoint)
            raise
        except ReplicaFailed:
            queue.failed(request)
            raise
        finally:
            if not is_ready:
                queue.end(request)

    async def load(self, wanted: Wanted, endpoint: Endpoint, guard: Guard) -> None:
        """Load the adapter at the replica, unless it has it. Raises NotLoaded or ReplicaFailed."""
        residency = self.queue.rules.residency
        adapter = self._served(wanted.name)
        present = Wanted(wanted.name, adapter.seq)
        if residency.has(present, endpoint):
            return
        async with self._locks.setdefault(endpoint, asyncio.Lock()):
            guard.heard(guard.patience_s)
            if residency.has(present, endpoint):
                return
            if why := residency.failure(present, endpoint, self.queue.now_ns()):
                raise NotLoaded(self._failed(present, why))
            try:
                async with asyncio.timeout(self.load_s):
                    await self._load(present, endpoint, adapter)
            except aiohttp.ClientError as error:
                raise self._unreached(present, error) from error
            except TimeoutError as error:
                why = f"it took longer than {self.load_s:g} s (MUSTER_MODEL_ADAPTER_MS)"
                raise NotLoaded(self._not_loaded(present, endpoint, why)) from error
            except OSError as error:
                raise self._unreached(present, error) from error
            guard.heard(guard.patience_s)

    async def _load(self, wanted: Wanted, endpoint: Endpoint, adapter: AdapterServed) -> None:
        residency, api = self.queue.rules.residency, _api(adapter)
        if not is_below(adapter.path, adapter.rules.root):
            why = f"its path {adapter.path!r} is outside {adapter.rules.root}"
            raise NotLoaded(self._not_loaded(wanted, endpoint, why))
        for name in residency.take_due(endpoint):
            await self._post(endpoint, api.unload, name)
        if residency.had_other(wanted, endpoint):
            await self._post(endpoint, api.unload, wanted.name)
        status, answer = await self._post(endpoint, api.load, wanted.name, adapter.path)
        if _is_already(status, answer) and adapter.is_replaced:
            await self._post(endpoint, api.unload, wanted.name)
            status, answer = await self._post(endpoint, api.load, wanted.name, adapter.path)
        if status >= CLIENT_ERROR and not _is_already(status, answer):
            why = f"it answered {status}: {errors.text_of(answer)}"
            raise NotLoaded(self._not_loaded(wanted, endpoint, why))
        residency.loaded(wanted, endpoint)

    async def load_again(
        self, wanted: Wanted, endpoint: Endpoint, guard: Guard, loads: int
    ) -> None:
        """Load an adapter that the replica did not have after so many loads. Raises as `load`."""
        self.queue.rules.residency.lost(wanted, endpoint, loads)
        await self.load(wanted, endpoint, guard)

    def refresh(self) -> None:
        """Unload the adapters that were removed, and forget replicas that are gone."""
        ready = self.queue.ready()
        self._locks = {
            endpoint: lock
            for endpoint, lock in self._locks.items()
            if lock.locked() or endpoint in ready
        }
        versions = self.queue.gateway.models.adapter_versions(self.queue.name)
        due = self.queue.rules.residency.drop_unwanted(versions)
        if due and (self._tidying is None or self._tidying.done()):
            self._tidying = asyncio.get_running_loop().create_task(self._unload(due))

    async def _unload(self, endpoints: list[Endpoint]) -> None:
        rules = self.queue.gateway.models.adapter_rules(self.queue.name)
        api = SGLANG_API if rules is not None and rules.api == SGLANG else V1
        for endpoint in endpoints:
            async with self._locks.setdefault(endpoint, asyncio.Lock()):
                for name in self.queue.rules.residency.take_due(endpoint):
                    try:
                        async with asyncio.timeout(self.load_s):
                            await self._post(endpoint, api.unload, name)
                    except FAILURES:
                        pass  # a replica that is gone has no adapters

    async def _post(
        self, endpoint: Endpoint, path: str, name: str, folder: str | None = None
    ) -> tuple[int, bytes]:
        """Ask the replica to load the adapter from the folder, or to unload it."""
        body = {"lora_name": name} if folder is None else {"lora_name": name, "lora_path": folder}
        headers = CIMultiDict({"content-type": "application/json"})
        upstream = self.queue.gateway.upstream
        response = await upstream.post(endpoint, path, headers, msgspec.json.encode(body))
        try:
            return response.status, await _read(response)
        finally:
            response.close()

    def _served(self, name: str) -> AdapterServed:
        found = self.queue.gateway.models.adapter(self.queue.name, name)
        if found is None:
            text = f"the adapter {name!r} of model {self.queue.name!r} was removed"
            raise ApiError(404, text, "model_not_found", "model")
        return found

    def _not_loaded(self, wanted: Wanted, endpoint: Endpoint, why: str) -> ApiError:
        """Note that the replica could not load the adapter, and return the error."""
        why = f"replica {endpoint.job_id} could not load it: {why}"
        self.queue.rules.residency.failed(wanted, endpoint, why, self.queue.now_ns())
        return self._failed(wanted, why)

    def _unreached(self, wanted: Wanted, error: Exception) -> ReplicaFailed:
        reason = f"{describe(error)} (to load the adapter {wanted.name})"
        return ReplicaFailed(reason, is_free=True)

    def _failed(self, wanted: Wanted, why: str) -> ApiError:
        text = (
            f"the adapter {wanted.name!r} of model {self.queue.name!r} is not available: {why}. "
            f"Check its folder with `muster adapter list {self.queue.name}`"
        )
        return ApiError(502, text, FAILED, "model", retry_after_s=RETRY_S)


def adapter_missing(call: Call) -> ApiError:
    """Return the error for a guest, which sees neither replicas nor folders."""
    text = (
        f"the adapter {call.adapter!r} of model {call.model!r} is not available: no replica could "
        "load it. Ask the model's owner"
    )
    return ApiError(502, text, FAILED, "model", retry_after_s=RETRY_S)


def is_lost(name: str, status: int, answer: bytes) -> bool:
    """Return whether a replica answered that it does not have the adapter."""
    return NOT_LOADED in answer or (status == MISSING and name.encode() in answer)


def _api(adapter: AdapterServed) -> Api:
    return SGLANG_API if adapter.rules.api == SGLANG else V1


def _is_already(status: int, answer: bytes) -> bool:
    return status >= CLIENT_ERROR and ALREADY in answer


async def _read(response: Answered) -> bytes:
    """Return the beginning of an answer."""
    return await response.content.read(ANSWER_BYTES_MAX)
