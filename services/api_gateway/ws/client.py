"""One client's WebSocket: its messages in, and one task for each subscription and request.

The messages of a client are read one after another, each in a turn of its tenant, so a client that
sends without end slows down its own tenant only. Tests: tests/integration/test_gateway_ws.py.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, Any, Final

from starlette.types import ASGIApp, Receive, Scope

from libs.common.errors import Refused, Unavailable
from services.api_gateway.access import roles
from services.api_gateway.access.fair_turns import MESSAGE
from services.api_gateway.access.key_watch import why_refused
from services.api_gateway.access.roles import Principal
from services.api_gateway.channels.followers import Place
from services.api_gateway.problems import Problem
from services.api_gateway.ws import counts, frames, job_output, topics
from services.api_gateway.ws.filters import EventsFilter, LogsFilter, names_in
from services.api_gateway.ws.frames import Name
from services.api_gateway.ws.model_request import ModelRequest
from services.api_gateway.ws.open_ids import REQUEST, SUBSCRIPTION, OpenIds
from services.api_gateway.ws.outbox import Link, Outbox
from services.api_gateway.ws.protocol import (
    BadMessage,
    Cancel,
    Message,
    Ping,
    Request,
    Subscribe,
    Unsubscribe,
    read_message,
)
from services.api_gateway.ws.sockets import POLICY
from services.api_gateway.ws.topics import Batch

if TYPE_CHECKING:
    from services.api_gateway.gateway import Gateway

# How long the requests of a client that has left may take to end.
END_S: Final = 5.0
# The route whose row of the table of roles a topic is held to.
ROUTES: Final = {
    "jobs": "/v1/jobs",
    "nodes": "/v1/nodes",
    "fleet": "/v1/fleet",
    "events": "/v1/events",
    "logs": "/v1/jobs/{ref}/output",
    "metrics": "/v1/cluster",
    "summary": "/v1/cluster",
}
# The topics that continue after a commit.
RESUMED: Final = ("jobs", "nodes", "fleet", "events")
# Notes a subscription in the access records: the scope, the status, and why it was denied.
Note = Callable[[Scope, int, str], None]


class SocketClient:
    """One connection of a principal. `key` is what it signed in with."""

    def __init__(
        self,
        gateway: "Gateway",
        app: ASGIApp,
        values: counts.Counts,
        scope: Scope,
        receive: Receive,
        link: Link,
        principal: Principal,
        key: str,
        note: Note,
    ) -> None:
        self.gateway = gateway
        self.app = app
        self.values = values
        self.scope = scope
        self.receive = receive
        self.link = link
        self.principal = principal
        self.key = key
        self.note = note
        self.outbox = Outbox(link, gateway.clock.boot_ns, gateway.telemetry.sockets.frames.inc)
        self.ids = OpenIds()
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.requests: dict[str, ModelRequest] = {}
        # The commit after which each subscription would continue.
        self.seqs: dict[str, int] = {}
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.is_closed = False

    # Read by `Sockets`.

    def unread_ns(self) -> int:
        return self.outbox.waits_ns()

    def last_seq(self) -> int:
        return min(self.seqs.values(), default=self.gateway.cluster.seq)

    def close(self, code: int, why: str, reason: str) -> None:
        """Close the connection with a code and a reason; further calls do nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        self.gateway.telemetry.sockets.closed.labels(why).inc()
        self.link.cut(code, reason)
        self._end(None)

    async def run(self) -> None:
        """Serve the connection until the client leaves or is cut off."""
        self.gateway.sockets.enter(self)
        listening = asyncio.create_task(self._listen())
        beating = asyncio.create_task(self._beat())
        for task in (listening, beating):
            task.add_done_callback(self._end)
        try:
            await self.outbox.send([frames.hello(self.gateway.cluster.seq, self.principal)])
            await self.over
        except OSError:
            pass  # the client has left
        finally:
            self.is_closed = True
            self.gateway.sockets.leave(self)
            await self._end_all([listening, beating])

    def _end(self, task: "asyncio.Task[None] | None") -> None:
        """End the connection because a task has ended, with its error if that is a bug."""
        if self.over.done():
            return
        error = None if task is None or task.cancelled() else task.exception()
        if error is None or isinstance(error, OSError):
            self.over.set_result(None)
        else:
            self.over.set_exception(error)

    async def _end_all(self, others: list["asyncio.Task[None]"]) -> None:
        for request in self.requests.values():
            request.cancel()
        ending = [self.tasks[name] for name in self.requests if name in self.tasks]
        for task in [*others, *self.tasks.values()]:
            if task not in ending:
                task.cancel()
        if ending:
            _, late = await asyncio.wait(ending, timeout=END_S)
            for task in late:
                task.cancel()
        await asyncio.gather(*others, *self.tasks.values(), return_exceptions=True)

    # Messages of the client.

    async def _listen(self) -> None:
        turns, tenant = self.gateway.fair_turns, self.principal.tenant
        while (message := await self.receive())["type"] == "websocket.receive":
            await turns.turn(tenant, MESSAGE)
            text = message.get("text")
            if not await self._on_message(message["bytes"] if text is None else text):
                return

    async def _on_message(self, data: str | bytes) -> bool:
        """Do what a message asks for; return whether the connection goes on."""
        name = ""
        try:
            message = read_message(data)
            name = getattr(message, "id", "")
            await self._obey(message)
        except BadMessage as error:
            await self._refuse(error.id, Problem(422, str(error)), error.field)
            if self.ids.note_bad():
                self.close(POLICY, "bad messages", "too many messages were not valid")
                return False
        except Problem as error:
            await self._refuse(name, error)
        return not self.is_closed

    async def _obey(self, message: Message) -> None:
        match message:
            case Ping(n=number):
                await self.outbox.send([frames.pong(number, self.gateway.cluster.seq)])
            case Subscribe():
                self.ids.enter(message.id, SUBSCRIPTION)
                self._start(message.id, self._subscription(message))
            case Unsubscribe():
                if self.ids.has(message.id, SUBSCRIPTION):
                    self.tasks[message.id].cancel()
                    await asyncio.wait((self.tasks[message.id],))
                    self._forget(message.id)
                await self._tell_end(message.id)
            case Request():
                self.ids.enter(message.id, REQUEST)
                request = ModelRequest(
                    app=self.app,
                    scope=self.scope,
                    key=self.key,
                    asked=message,
                    outbox=self.outbox,
                    seq=lambda: self.gateway.cluster.seq,
                )
                self.requests[message.id] = request
                self._start(message.id, request.run())
            case Cancel():
                if message.id in self.requests:
                    self.requests[message.id].cancel()
                else:
                    await self._tell_end(message.id)

    def _start(self, name: str, work: Any) -> None:  # noqa: ANN401  a coroutine
        task = self.tasks[name] = asyncio.create_task(work)
        task.add_done_callback(lambda done: self._on_done(name, done))

    def _on_done(self, name: str, task: "asyncio.Task[None]") -> None:
        if self.tasks.get(name) is task:
            self._forget(name)
        if not task.cancelled() and task.exception() is not None:
            self._end(task)

    def _forget(self, name: str) -> None:
        self.tasks.pop(name, None)
        self.requests.pop(name, None)
        self.seqs.pop(name, None)
        self.ids.leave(name)

    async def _tell_end(self, name: str) -> None:
        await self.outbox.send([Name(name).frame("end", 0, b'{"reason":"unsubscribed"}')])

    async def _refuse(self, name: str, problem: Problem, field: str = "") -> None:
        seq = self.seqs.get(name, 0)
        error = frames.error(name, seq, problem.status, detail=problem.detail, field=field)
        await self.outbox.send([error])

    # Subscriptions.

    async def _subscription(self, asked: Subscribe) -> None:
        """Send the frames of a subscription until it ends. An error ends it with a frame."""
        places: list[Place] = []
        shares, tenant = self.gateway.sockets.subscriptions, self.principal.tenant
        amount = 1 + names_in(asked.filter)
        if asked.topic in RESUMED:
            self.seqs[asked.id] = asked.after
        try:
            self.gateway.sockets.take_subscription(tenant, amount)
        except Problem as refused:
            await self._refuse(asked.id, refused)
            return
        try:
            batches = await self._open(asked, places)
            self._record(asked, 200)
            async with aclosing(batches) as opened:
                async for batch in opened:
                    await self.outbox.send(batch.messages)
                    if asked.id in self.seqs:
                        self.seqs[asked.id] = batch.seq
        except (Problem, Refused, Unavailable) as error:
            problem = _problem_of(error)
            self._record(asked, problem.status, problem.detail if problem.status == 403 else "")
            field = problem.detail.partition(":")[0]
            is_field = field == "after" or field.startswith("filter.")
            with suppress(OSError):
                await self._refuse(asked.id, problem, field if is_field else "")
        finally:
            shares.give_back(tenant, amount)
            for place in places:
                place.leave()

    async def _open(self, asked: Subscribe, places: list[Place]) -> AsyncGenerator[Batch, None]:
        """Return the frames of a subscription.

        `places` gets the place that it takes. Raises Problem, Refused or Unavailable.
        """
        gateway, principal, name = self.gateway, self.principal, Name(asked.id)
        denial = roles.denial(principal, "GET", ROUTES[asked.topic])
        if denial is not None:
            raise denial
        if asked.after > gateway.cluster.seq:
            await _settle(gateway, asked.after)
        match asked.topic:
            case "events":
                facts = asked.filter
                assert isinstance(facts, EventsFilter)
                fact_filter = await topics.fact_filter_of(gateway, principal, facts)
                return topics.fact_batches(gateway, fact_filter, asked.after, name)
            case "logs":
                chosen = asked.filter
                assert isinstance(chosen, LogsFilter)
                job = job_output.job_of(gateway, principal, chosen)
                places.append(gateway.places.take(principal.tenant, job.job_id))
                return job_output.log_batches(gateway, job, chosen, name)
            case counts.SUMMARY | counts.METRICS:
                return counts.value_batches(self.values, principal, asked.topic, name)
            case _:
                return topics.row_batches(topics.stream_of(gateway, principal, asked), name)

    def _record(self, asked: Subscribe, status: int, denied: str = "") -> None:
        """Note the subscription in the access records, as a request of its own."""
        text = frames.encoded(asked.filter).decode()
        self.note({**self.scope, "detail": f"{asked.topic} {text}"[:1_024]}, status, denied)

    # The connection's own life.

    async def _beat(self) -> None:
        """Tell the client now and then that the connection lives, and look whether its key is
        still accepted.
        """
        gateway = self.gateway
        while True:
            await asyncio.sleep(gateway.settings.keepalive_ms / 1_000)
            if why := why_refused(gateway, self.key, self.principal):
                self.close(POLICY, "key", why)
                return
            await self.outbox.send([frames.alive(gateway.cluster.seq)])


async def _settle(gateway: "Gateway", seq: int) -> None:
    """Wait until this gateway has folded the commit after which the client continues."""
    try:
        await gateway.settle(seq)
    except Refused as error:
        raise Refused(str(error).replace("min_seq", "after", 1)) from error


def _problem_of(error: Problem | Refused | Unavailable) -> Problem:
    if isinstance(error, Problem):
        return error
    return Problem(422 if isinstance(error, Refused) else 503, str(error))
