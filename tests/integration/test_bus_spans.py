"""A request's trace crosses the bus, and messages of agents begin no span."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from libs.common.spans import recording
from libs.common.spans.recording import ASKS_MAX, Recorder, Work
from libs.common.spans.trace_context import TraceContext
from libs.common.transport.bus_nats import NatsBus
from libs.common.transport.connection_nats import connect
from tests.natsserver import NatsServer

CONTEXT = TraceContext("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
ANSWER_S = 5.0


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recording.active = Recorder()
    yield recording.active
    recording.active = None


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    started = NatsServer(tmp_path_factory.mktemp("nats"))
    started.start()
    yield started
    started.kill()


@pytest.fixture
async def buses(server: NatsServer, tmp_path: Path) -> AsyncIterator[tuple[NatsBus, NatsBus]]:
    clients = [await connect([server.url], name) for name in ("one", "two")]
    yield NatsBus(clients[0]), NatsBus(clients[1])
    for client in clients:
        await client.close()


async def told(
    buses: tuple[NatsBus, NatsBus], subject: str, context: TraceContext | None
) -> TraceContext | None:
    """The trace for which the answering side works."""
    here, there = buses
    heard: list[TraceContext | None] = []

    async def answer(subject: str, data: bytes) -> bytes:
        work = recording.current.get()
        heard.append(None if work is None else work.context)
        return b""

    await there.subscribe(subject, answer)
    token = recording.current.set(None if context is None else Work(context))
    try:
        await here.request(subject, b"why", ANSWER_S)
    finally:
        recording.current.reset(token)
    return heard[0]


async def test_an_answer_is_a_span_of_the_request_that_asked(
    buses: tuple[NatsBus, NatsBus], recorder: Recorder
) -> None:
    found = await told(buses, "ask.scheduler.why", CONTEXT)
    (span,) = recorder.take(9)
    assert (span.trace_id, span.parent_id) == (CONTEXT.trace_id, CONTEXT.span_id)
    assert span.attributes["messaging.destination.name"] == "ask.scheduler.why"
    assert found == TraceContext(CONTEXT.trace_id, span.span_id)


@pytest.mark.parametrize(
    ("subject", "context"),
    [
        ("heartbeat.n1", CONTEXT),
        ("ask.secrets.n1", CONTEXT),
        ("ask.scheduler.vitals", None),
        ("ask.quota.reserve", CONTEXT._replace(is_sampled=False)),
    ],
)
async def test_agents_and_requests_without_a_recorded_trace_begin_no_span(
    buses: tuple[NatsBus, NatsBus], recorder: Recorder, subject: str, context: TraceContext | None
) -> None:
    assert await told(buses, subject, context) is None
    assert recorder.take(9) == []


async def test_the_questions_of_one_request_that_are_spans_are_bounded(
    buses: tuple[NatsBus, NatsBus], recorder: Recorder
) -> None:
    here, there = buses

    async def answer(subject: str, data: bytes) -> bytes:
        return b""

    await there.subscribe("ask.node.n1.output", answer)
    token = recording.current.set(Work(CONTEXT))
    for _ in range(ASKS_MAX + 5):
        await here.request("ask.node.n1.output", b"", ANSWER_S)
    recording.current.reset(token)
    assert len(recorder.take(99)) == ASKS_MAX
