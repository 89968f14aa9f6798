"""Sends a request to a replica with room, and to another if that one fails.

It reserves tokens, sets the guard, waits for a replica, tries replicas, and settles the tokens.
Metrics count every outcome, and the client gets an error whenever that is still possible. Tests:
tests/integration/test_openai_*.py.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict
from starlette.types import Receive

from libs.common.state.cluster import Endpoint
from services.api_gateway.access.auth import Principal
from services.api_gateway.openai import request, upstream
from services.api_gateway.openai.adapters import LOST, NotLoaded, adapter_missing, is_lost
from services.api_gateway.openai.batching import AllBatches
from services.api_gateway.openai.call import Call, ignore_begin
from services.api_gateway.openai.continuation import continuation_of
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.openai.guard import GONE, SILENT, Guard
from services.api_gateway.openai.hedge import Hedge, Opened
from services.api_gateway.openai.model_queue import ModelQueue
from services.api_gateway.openai.model_request import Request
from services.api_gateway.openai.replica_failure import ReplicaFailed
from services.api_gateway.openai.request_spans import LIMITS, ROUTE, WAIT

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# How long a request waits for a standby to take over, and how often it looks.
PROMOTION_S: Final = 5.0
PROMOTION_LOOK_S: Final = 0.01
# The status, in metrics only, of a request whose client disconnected.
CLIENT_GONE: Final = 499


class Dispatch:
    """Sends requests to replicas. All HTTP servers of a gateway share its queues."""

    def __init__(self, gateway: "Gateway") -> None:
        self.gateway = gateway
        self.settings = gateway.settings
        self.batches = AllBatches(gateway, self._dispatch)

    async def run(self, call: Call, principal: Principal, receive: Receive) -> None:
        """Reserve tokens, dispatch the request, and settle the tokens."""
        meter = self.gateway.meter
        if not meter.counts(principal, call.model):
            await self._guarded(call, principal, receive)
            return
        # A body that cannot be changed is refused before anything is reserved.
        worst = self._bound(call)
        call.spans.begin(LIMITS)
        call.grant = await meter.reserve(principal, call.model, worst)
        call.spans.done()
        call.metered = True
        model = self.gateway.cluster.models.get(call.model)
        if model is not None and model.tenant != principal.tenant:
            call.tokens_max = worst  # the server is not the tenant's own, and could say anything
        try:
            await self._guarded(call, principal, receive)
        finally:
            meter.settle(call.grant, _used(call))

    def _bound(self, call: Call) -> int:
        """Return the most tokens that the request can use, and limit its answer to that.

        Let the replica count them. Raises ApiError 400 if the body cannot be changed.
        """
        unbounded, route = self.settings.model_output_tokens, call.route
        worst = request.worst_case_tokens(call.fields, call.body, call.path, unbounded)
        if route.bound and not call.fields.is_bounded(call.path):
            call.body = request.with_bound(call.body, unbounded, call.path)
        if route.counts_on_request and call.fields.streams and not call.fields.usage_asked:
            call.body, call.strips_usage = request.with_usage(call.body), True
        return worst if call.form is None else unbounded

    async def _guarded(self, call: Call, principal: Principal, receive: Receive) -> None:
        """Dispatch under the guard.

        Whatever ends the request, the client gets an answer and metrics count it.
        """
        telemetry = self.gateway.telemetry
        # The pieces of a form are still read, so its own `receive` notices the disconnect.
        watchers = call.scope.get("watchers") if call.form is None else None
        guard = Guard(receive, self.settings.model_answer_ms / 1_000, watchers)
        call.send = guard.excluding(call.send)
        telemetry.models.began(call.model)
        status = 0
        try:
            if (bounds := self.batches.bounds(call.path, call.model)) is not None:
                await self.batches.answer(call, principal, guard, bounds)
            else:
                await self._dispatch(call, principal, guard)
        except ApiError as error:
            guard.close()
            await call.refuse(error)
            status = error.status
        except asyncio.CancelledError:
            if guard.reason == SILENT:
                _clear_cancellation(asyncio.current_task())
                waited = f"{guard.patience_s:g} s"
                await call.refuse(
                    ApiError(
                        504, f"the model's replica sent nothing for {waited}: try again", "timeout"
                    )
                )
                status = 504
            elif guard.reason == GONE:
                _clear_cancellation(asyncio.current_task())
                status = CLIENT_GONE
            else:
                raise
        finally:
            guard.close()
            telemetry.models.ended(
                call.model,
                route=call.path,
                status=status or call.status or 500,
                streamed=call.streaming,
                first_s=call.first_s,
                trace_id=call.spans.trace_id,
            )
            call.spans.end(call.first_s, call.streaming, call.usage)

    async def _dispatch(self, call: Call, principal: Principal, guard: Guard) -> None:
        """Try replicas until one answers or nothing is left to try. Raises ApiError."""
        headers = upstream.headers_for(call.scope["request_id"], call.scope["header"])
        queue = self.gateway.queues.of(call.model)
        call.spans.begin(ROUTE)
        asked = queue.request(call, principal.tenant)
        call.spans.done(asked)
        if self.gateway.models.continues(call.model):
            call.continuation = continuation_of(call.path, call.fields, call.body)
        failure: ReplicaFailed | None = None
        for _ in range(max(1, self.settings.model_attempts)):
            if failure is not None and not (
                call.can_repeat and await self._may_retry(queue, asked, failure)
            ):
                break
            if failure is not None and not call.status:
                guard.next_try()
            call.spans.begin(WAIT)
            endpoint = await queue.bind(asked, guard)
            call.spans.done(asked)
            if call.moves_on:
                call.continue_elsewhere()
                self.gateway.telemetry.models.continued(call.model)
            try:
                await self._try(
                    call, guard, endpoint=endpoint, headers=headers, queue=queue, asked=asked
                )
                return
            except ReplicaFailed as error:
                failure = error
                if not call.moves_on:
                    self.gateway.telemetry.models.retried(call.model)
        assert failure is not None, "a request is tried at least once"
        if failure.answer is not None:
            await call.finish(failure.answer)
            return
        if isinstance(failure, NotLoaded):
            raise adapter_missing(call) if call.is_guest else failure.error
        raise ApiError(
            502,
            f"the model {call.model!r} failed: a replica {failure}, and no other answered: "
            "try again",
            "upstream_error",
        )

    async def _may_retry(self, queue: ModelQueue, asked: Request, failure: ReplicaFailed) -> bool:
        """Return whether another replica is left to try, and the retry is within the budget.

        A replica that is dead does no work, so a retry in its place is not limited: the end of one
        replica with many requests loses none of them.
        """
        return await self._has_untried(queue, asked) and (
            not failure.is_alive or queue.tries.may_retry()
        )

    async def _has_untried(self, queue: ModelQueue, asked: Request) -> bool:
        """Return whether a ready replica has not been tried.

        If every replica failed and one may have a standby, wait until the standby serves.
        """
        until = time.monotonic() + PROMOTION_S
        while not queue.has_untried(asked):
            if time.monotonic() >= until or not self.gateway.models.has_standby(queue.name):
                return False
            await asyncio.sleep(PROMOTION_LOOK_S)
        return True

    async def _try(
        self,
        call: Call,
        guard: Guard,
        endpoint: Endpoint,
        headers: CIMultiDict[str],
        queue: ModelQueue,
        asked: Request,
    ) -> None:
        """Try the replica to which the request is bound, and a second one if that is late.

        Raises ReplicaFailed while nothing was sent to the client, ApiError later.
        """
        if call.adapter:
            await queue.adapters.ready(asked, endpoint, guard)
            opened = partial(self._post_to_adapter, call, headers, endpoint, guard, queue, asked)
            await self._try_one(call, guard, queue, asked, opened)
            return
        post = partial(self._post, call, headers)
        # A form cannot go to two replicas at once.
        may_hedge = call.form is None and not call.route.is_stateful and not call.status
        after_ns = queue.tries.after_ns(asked) if may_hedge else None
        if after_ns is None:
            await self._try_one(call, guard, queue, asked, partial(post, endpoint))
            return
        hedge = Hedge(call, queue, asked, post, guard)
        call.begins = hedge.close
        hedge.begin_after(after_ns)
        try:
            await self._try_one(call, guard, queue, asked, partial(post, endpoint))
            return
        except ReplicaFailed:
            # After the beginning of the answer there is no second one: the hedge is closed.
            if call.status or not await self._answers_second(call, hedge, guard):
                raise
            sent = hedge.take()
        except asyncio.CancelledError:
            if hedge.opened is None or _cancellations_left(asyncio.current_task()):
                raise
            sent = hedge.take()
        finally:
            hedge.close()
            call.begins = ignore_begin
        queue.tries.moved_to_second(asked, sent)
        await self._try_one(call, guard, queue, asked, hedge.answer)

    async def _answers_second(self, call: Call, hedge: Hedge, guard: Guard) -> bool:
        """Return whether the second replica answers after the first one failed.

        Meanwhile the tokens are unknown. They stay so if the second replica may have worked.
        """
        known = call.tokens
        guard.next_try()
        if not hedge.is_free:
            call.tokens = None
        found = await hedge.answers()
        if hedge.is_free:
            call.tokens = known
        return found

    async def _post_to_adapter(
        self,
        call: Call,
        headers: CIMultiDict[str],
        endpoint: Endpoint,
        guard: Guard,
        queue: ModelQueue,
        asked: Request,
    ) -> Opened:
        """Send the request to an adapter; once more if the replica had lost it meanwhile."""
        name, wanted = queue.adapters.known_as(call, endpoint), asked.ticket.adapter
        if wanted is None:
            return await self._post(call, headers, endpoint, name)
        loads = queue.rules.residency.loads(wanted, endpoint)
        opened = await self._post(call, headers, endpoint, name)
        response = opened.response
        if response.status not in LOST or not call.can_repeat:
            return opened
        answer = await call.read(response.content)
        if not is_lost(call.adapter, response.status, answer):
            return Opened(response, answer)
        await queue.adapters.load_again(wanted, endpoint, guard, loads)
        return await self._post(call, headers, endpoint, name)

    async def _post(
        self, call: Call, headers: CIMultiDict[str], endpoint: Endpoint, name: str = ""
    ) -> Opened:
        """Send the request, and wait for the answer's headers: those of a stream come at once."""
        expected = name or self.gateway.models.expects(call.model, endpoint)
        if call.form is not None:
            headers = call.form.headers(headers, expected)
        body = call.body_for(expected)
        headers = call.spans.sent(endpoint, headers)
        post = self.gateway.upstream.post(endpoint, call.path, headers, body)
        if not call.fields.streams:
            return Opened(await post)
        async with asyncio.timeout(self.settings.model_headers_ms / 1_000):
            return Opened(await post)

    async def _try_one(
        self,
        call: Call,
        guard: Guard,
        queue: ModelQueue,
        asked: Request,
        answer: Callable[[], Awaitable[Opened]],
    ) -> None:
        """Relay the answer of the replica to which the request is bound."""
        assert asked.ticket.sent is not None, "the request is bound"
        endpoint, response = asked.ticket.sent.replica, None
        why = "the request was cancelled"
        before, call.tokens, call.usage = call.tokens, None, None
        try:
            response, first = await answer()
            call.heard = partial(_heard, call, partial(queue.heard, asked, endpoint))
            await call.relay(
                response=response,
                guard=guard,
                idle_s=self.settings.model_idle_ms / 1_000,
                replica=endpoint.job_id,
                first=first,
            )
            why = ""
            if call.status >= 400:
                call.tokens = before
        except ReplicaFailed as error:
            why = f"the replica {error}"
            call.moves_on = call.status > 0
            queue.failed(asked, is_tried=not error.is_spared)
            if error.is_free:
                call.tokens = before
            raise
        except ApiError:
            if response is None:
                call.tokens = before  # the request was not sent, or refused for its adapter
            raise
        except upstream.FAILURES as error:
            why = f"the replica {upstream.describe(error)}"
            if call.form is not None and call.form.fault is not None:
                call.tokens = before  # no replica had the whole form
                raise call.form.fault from error
            if call.status and not call.can_continue():
                queue.failed(asked, is_broken=True)
                raise _broken(error) from error
            call.moves_on = call.status > 0
            queue.failed(asked, is_tried=not upstream.never_sent(error))
            if upstream.unprocessed(error):
                call.tokens = before
            late = isinstance(error, TimeoutError) and not upstream.unprocessed(error)
            raise ReplicaFailed(upstream.describe(error), is_alive=late) from error
        except asyncio.CancelledError:
            if guard.reason == SILENT:
                queue.failed(asked, is_broken=True)
            raise
        finally:
            if response is not None:
                response.close()
            call.spans.left(endpoint, call.status, why)
            queue.end(asked, call)


def _broken(error: BaseException) -> ApiError:
    """Return the end of a stream whose replica failed."""
    return ApiError(502, f"the model's replica {upstream.describe(error)}", "upstream_error")


def _heard(call: Call, tell: Callable[[int], None], events: int) -> None:
    call.events += events
    tell(events)


def _used(call: Call) -> int | None:
    """Return the tokens to settle.

    A client that leaves before the count comes pays for what it got, if that is more than the
    reservation.
    """
    if call.tokens is None and call.events > call.grant.tokens:
        return min(call.events, call.tokens_max)
    return call.tokens


def _cancellations_left(task: "asyncio.Task[object] | None") -> int:
    """Clear one cancellation of the task: the hedge's. Return how many others it has."""
    assert task is not None
    return task.uncancel()


def _clear_cancellation(task: "asyncio.Task[object] | None") -> None:
    """Clear the task's cancellation: the guard requested it, and this file answers it."""
    assert task is not None
    task.uncancel()
