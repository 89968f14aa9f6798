"""Sends requests to models that do not batch by themselves in batches.

A batch is a request of its own: it waits for a replica, is retried and is charged like any other.
Its answer is divided, and each client gets its own part. If a replica refuses a batch, its requests
go one by one, so that each gets its own answer or error. The rules are
services/api_gateway/serving/batching.py and batch_bodies.py. Tests:
tests/integration/test_openai_batching.py.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

from starlette.types import Message

from libs.common.batching import Batching
from libs.common.model import JobId
from services.api_gateway.access.auth import Principal
from services.api_gateway.openai import batch_bodies, queue_errors, reading, request
from services.api_gateway.openai.adapters import FAILED, adapter_missing
from services.api_gateway.openai.batch_bodies import LISTS, Inputs, Part
from services.api_gateway.openai.body import Kept
from services.api_gateway.openai.call import CLIENT_ERROR, JSON, OK, Call
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.guard import SILENT, Guard
from services.api_gateway.openai.order_headers import requested_order
from services.api_gateway.openai.replica_failure import Answer
from services.api_gateway.serving.admission import TENANT_REQUESTS, Refused
from services.api_gateway.serving.batching import Batch, Batches, BatchKey
from services.api_gateway.serving.fairness import SECOND_NS, Flow

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

MS_NS: Final = 1_000_000
# An error with one of these codes may be due to one request of a batch, or to their number, so its
# requests go one by one, as far as the budget of second tries allows.
ONE_BY_ONE: Final = ("upstream_error", reading.ANSWER_TOO_LARGE)

# Dispatches a call to the end of its answer. Raises ApiError.
Dispatches = Callable[[Call, Principal, Guard], Awaitable[None]]


class Member:
    """One request in a batch. `part` becomes its part of the answer; None if it must go alone."""

    def __init__(self, call: Call, principal: Principal, inputs: Inputs) -> None:
        self.call = call
        self.principal = principal
        self.inputs = inputs
        loop = asyncio.get_running_loop()
        self.part: asyncio.Future[tuple[Part, str] | None] = loop.create_future()

    def refuse(self, error: ApiError) -> None:
        if not self.part.done():
            self.part.set_exception(error)

    def answer(self, found: tuple[Part, str] | None) -> None:
        if not self.part.done():
            self.part.set_result(found)


class UnderWay(NamedTuple):
    """A batch in its queue or at a replica, and its task."""

    batch: Batch[Member]
    task: "asyncio.Task[None]"


class OwnClient:
    """The client of a batch: it keeps the answer, and disconnects when `over` is set.

    The answer counts twice among the tenant's bytes: once while it is read, as every whole answer,
    and once here. The second count stands for the memory of its parts, until each part counts for
    its own request.
    """

    def __init__(self, kept: Kept, bytes_max: int) -> None:
        self.over = asyncio.Event()
        self.status = 0
        self.replica = ""
        self.size = 0
        self.kept = kept
        self.bytes_max = bytes_max
        self.pieces: list[bytes] = []

    async def receive(self) -> Message:
        await self.over.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.replica = dict(message["headers"]).get(b"x-muster-replica", b"").decode()
            return
        piece: bytes = message["body"]
        self.size += len(piece)
        if self.size > self.bytes_max:
            raise reading.too_large(self.bytes_max)
        self.kept.add(len(piece))
        self.pieces.append(piece)

    def body(self) -> bytes:
        """Return the answer's body."""
        return b"".join(self.pieces)

    def close(self) -> None:
        """End the exchange, and give the counted bytes back."""
        self.over.set()
        self.kept.close()


class ModelBatches:
    """The batches of one model."""

    def __init__(
        self, gateway: "Gateway", name: str, bounds: Batching, dispatch: Dispatches
    ) -> None:
        self.gateway = gateway
        self.name = name
        self.bounds = bounds
        self.dispatch = dispatch
        self.rules: Batches[Member] = Batches(bounds.items_max, bounds.wait_ms * MS_NS)
        self._running: dict[Member, UnderWay] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def answer(self, member: Member, guard: Guard) -> None:
        """Answer a request, with others where possible."""
        call, tenant = member.call, member.principal.tenant
        order = requested_order(call.scope["header"], tenant)
        key = BatchKey(tenant, (call.path, order, member.inputs.shared))
        self._count_waiting(Flow(order[1], tenant))
        self.rules.join(key, member, len(member.inputs.items), self._now_ns())
        patience_s = guard.patience_s
        guard.heard(patience_s + self.gateway.settings.model_wait_ms / 1_000)
        try:
            try:
                self._pump()
                found = await member.part
            finally:
                self._count_no_longer(tenant)
            guard.heard(patience_s)
            if found is None:
                call.tokens = 0
                await self.dispatch(call, member.principal, guard)
            else:
                part, replica = found
                if part.usage is not None:
                    part = part._replace(usage=part.usage.at_most(call.tokens_max))
                self.gateway.usage.note_part(
                    member.principal, call.model, JobId(replica), part.usage
                )
                await _finish(call, part, replica)
        finally:
            self._left(key, member)

    def _count_waiting(self, flow: Flow) -> None:
        """Count a request among its tenant's waiting ones. Raises ApiError 429 if too many wait."""
        queue, now_ns = self.gateway.queues.of(self.name), self._now_ns()
        waiting = queue.rules.requests_of.get(flow.tenant, 0)
        if 0 < queue.rules.bounds.tenant_requests <= waiting:
            refused = Refused(TENANT_REQUESTS, 429, queue.rules.retry_after_s(flow, now_ns))
            raise queue_errors.refusal(self.name, queue.rules, flow, refused)
        queue.rules.requests_of[flow.tenant] = waiting + 1

    def _count_no_longer(self, tenant: str) -> None:
        requests_of = self.gateway.queues.requests_of
        requests_of[tenant] -= 1
        if not requests_of[tenant]:
            del requests_of[tenant]

    def _left(self, key: BatchKey, member: Member) -> None:
        """Take out a request that has its answer, or whose client left.

        A batch whose last request leaves is cancelled.
        """
        under_way = self._running.pop(member, None)
        if under_way is None:
            self.rules.leave(key, member)
        elif not any(each in self._running for each in under_way.batch.members):
            under_way.task.cancel()

    def _pump(self) -> None:
        """Send the batches whose time has come, and look again when it may have come for more."""
        now_ns, loop = self._now_ns(), asyncio.get_running_loop()
        for batch in self.rules.due(len(self.gateway.models.ready(self.name)), now_ns):
            under_way = UnderWay(batch, loop.create_task(self._run(batch)))
            # Not at the end of the task's own code: a task that is cancelled at once runs none.
            under_way.task.add_done_callback(partial(self._over, batch))
            self._running.update(dict.fromkeys(batch.members, under_way))
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (next_ns := self.rules.next_ns(now_ns)) is not None:
            self._timer = loop.call_later((next_ns - now_ns) / SECOND_NS, self._pump)

    async def _run(self, batch: Batch[Member]) -> None:
        members = list(batch.members)
        kept = Kept(self.gateway.shares.bytes, members[0].principal.tenant)
        client = OwnClient(kept, self.gateway.settings.model_answer_bytes)
        guard = Guard(client.receive, self.gateway.settings.model_answer_ms / 1_000)
        try:
            parts = await self._parts(members, client, guard) if len(members) > 1 else None
            if parts is None:
                await self._one_by_one(members)
            for member, part in zip(members, parts or (), strict=False):
                member.answer((part, client.replica))
        except ApiError as error:
            alone = [each for each in members if self._may_go_alone(error)]
            for member in members:
                if member not in alone:
                    member.refuse(_shown(error, member.call))
            if alone:
                await self._one_by_one(alone)
        finally:
            guard.close()
            client.close()
            if guard.reason == SILENT:
                for member in members:
                    member.refuse(_silent(guard))

    def _may_go_alone(self, error: ApiError) -> bool:
        """Return whether one more request is sent to a replica after the batch failed."""
        tries = self.gateway.queues.of(self.name).tries
        return error.code in ONE_BY_ONE and tries.may_retry()

    def _over(self, batch: Batch[Member], task: asyncio.Task[None]) -> None:
        """Make room for the next batch."""
        self.rules.ended(batch)
        self._pump()

    async def _one_by_one(self, members: list[Member]) -> None:
        """Let each request go alone. The batch is under way until the last of them has left."""
        for member in members:
            member.answer(None)
        await asyncio.Event().wait()

    async def _parts(
        self, members: list[Member], client: OwnClient, guard: Guard
    ) -> list[Part] | None:
        """Send the requests as one. Return the parts of its answer, None if they must go alone."""
        first, inputs = members[0], [member.inputs for member in members]
        body = batch_bodies.joined(first.call.path, inputs)
        client.kept.add(len(body))
        call = Call(
            scope={
                "header": first.call.scope["header"],
                "request_id": str(uuid4()),
                "principals": [member.principal for member in members],
            },
            send=client.send,
            path=first.call.path,
            model=self.name,
            fields=request.read(body),
            body=body,
            answer_bytes_max=client.bytes_max,
            adapter=first.call.adapter,
        )
        call.kept = client.kept
        for member in members:
            member.call.tokens = None
        self.gateway.telemetry.models.batched(self.name)
        try:
            await self.dispatch(call, first.principal, guard)
        except ApiError:
            if call.tokens == 0:
                for member in members:
                    member.call.tokens = 0
            raise
        if client.status >= CLIENT_ERROR:
            return None
        return batch_bodies.divided(call.path, client.body(), inputs)

    def _now_ns(self) -> int:
        return self.gateway.clock.boot_ns()


class AllBatches:
    """The batches of all models of one HTTP server."""

    def __init__(self, gateway: "Gateway", dispatch: Dispatches) -> None:
        self.gateway = gateway
        self.dispatch = dispatch
        self._models: dict[str, ModelBatches] = {}

    def bounds(self, path: str, name: str) -> Batching | None:
        """Return the bounds of the model's batches; None if requests of the path are not joined."""
        return self.gateway.models.batching(name) if path in LISTS else None

    async def answer(
        self, call: Call, principal: Principal, guard: Guard, bounds: Batching
    ) -> None:
        """Answer a request to a model with batches. Raises ApiError."""
        inputs = batch_bodies.inputs_of(call.path, call.body, bounds.items_max)
        if inputs is None:
            await self.dispatch(call, principal, guard)
            return
        name = call.model
        found = self._models.get(name)
        if found is None or found.bounds != bounds:
            self._models = {
                each: batches for each, batches in self._models.items() if not batches.rules.is_idle
            }
            found = self._models[name] = ModelBatches(self.gateway, name, bounds, self.dispatch)
        await found.answer(Member(call, principal, inputs), guard)


async def _finish(call: Call, part: Part, replica: str) -> None:
    if call.kept is not None:
        call.kept.add(len(part.body))
    call.usage = part.usage
    call.tokens = part.usage.tokens if part.usage is not None else None
    await call.finish(Answer(OK, JSON, part.body), replica)


def _shown(error: ApiError, call: Call) -> ApiError:
    """Return the error of a batch as the client of a request in it may read it."""
    return adapter_missing(call) if call.is_guest and error.code == FAILED else error


def _silent(guard: Guard) -> ApiError:
    return ApiError(
        504,
        f"the model's replica sent nothing for {guard.patience_s:g} s: try again",
        "timeout",
    )
