"""Spans reach a collector by OTLP, and a dead collector costs nothing but the spans."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from libs.common.settings.settings import Settings
from libs.common.spans import exporting, recording
from libs.common.spans.exporting import Exporter
from libs.common.spans.recording import CLIENT, QUEUE_MAX, Recorder, Span
from tests.integration.otlp_receiver import Receiver, receiving

TRACE = "0af7651916cd43dd8448eb211c80319c"
NOW = 1_700_000_000_000_000_000


def span(number: int, **more: object) -> Span:
    one = Span("muster.job", TRACE, f"{number + 1:016x}", "", NOW + number, NOW + number + 5)
    return one._replace(**more)  # type: ignore[arg-type]


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(exporting, "EXPORT_EVERY_S", 0.05)
    for name in exporting.ENDPOINT_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    recording.active = None


async def recording_began() -> Recorder:
    """The recorder of this process, once its collector was found."""
    async with asyncio.timeout(10):
        while recording.active is None:
            await asyncio.sleep(0.01)
    return recording.active


def started(url: str, service: str = "quota") -> Exporter:
    exporter = exporting.begin(Settings(otlp_endpoint=url, node_id="n1"), service)
    assert exporter is not None
    return exporter


async def test_a_collector_gets_every_field_of_a_span(receiver: Receiver) -> None:
    exporter = started(receiver.url + "/", "node_agent")
    recorder = await recording_began()
    given = {"muster.job.id": "j1", "count": 3, "part": 0.5, "yes": True, "long": "x" * 9_999}
    recorder.record(
        span(0, parent_id="00f067aa0ba902b7", attributes=given, kind=CLIENT, error="broke")
    )
    (found,) = await receiver.trace(TRACE, lambda spans: len(spans) == 1)
    await asyncio.to_thread(exporter.stop)
    assert receiver.paths[0] == "/v1/traces"
    assert (found.service, found.name, found.error) == ("muster-node-agent", "muster.job", "broke")
    assert (found.parent_id, found.start_ns, found.end_ns) == ("00f067aa0ba902b7", NOW, NOW + 5)
    assert found.attributes == given | {"long": "x" * recording.TEXT_MAX}
    assert (recorder.sent, recorder.failed, recorder.dropped) == (1, 0, 0)


async def test_the_end_of_a_process_exports_what_is_left(receiver: Receiver) -> None:
    exporter = started(receiver.url)
    (await recording_began()).record_all(span(number) for number in range(200))
    await asyncio.to_thread(exporter.stop)
    assert len(receiver.spans) == 200 and recording.active is None


async def test_the_variables_of_opentelemetry_name_a_collector_too() -> None:
    exact, base = exporting.ENDPOINT_VARIABLES
    both = {exact: "http://c:1/x", base: "http://b:2/"}
    assert exporting.begin(Settings(), "quota") is None
    assert exporting.traces_url(Settings(), {base: "http://b:2/"}) == "http://b:2/v1/traces"
    assert exporting.traces_url(Settings(), both) == "http://c:1/x"
    own = Settings(otlp_endpoint="http://own:3")
    assert exporting.traces_url(own, both) == "http://own:3/v1/traces"


async def test_variables_of_opentelemetry_set_headers_compression_and_the_resource(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "Authorization=Bearer%20x, x-team=a")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test,service.name=no")
    exporter = started(receiver.url)
    (await recording_began()).record(span(0))
    (found,) = await receiver.trace(TRACE, lambda spans: len(spans) == 1)
    await asyncio.to_thread(exporter.stop)
    assert found.service == "muster-quota"
    assert receiver.resource["deployment.environment"] == "test"
    headers = receiver.headers
    assert (headers["authorization"], headers["x-team"]) == ("Bearer x", "a")
    assert headers["content-encoding"] == "gzip"


async def test_a_collector_that_cannot_be_used_records_nothing(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_CERTIFICATE", "/nowhere/authority.pem")
    exporter = started(receiver.url.replace("http:", "https:"))
    async with asyncio.timeout(10):
        while "cannot be used" not in caplog.text:
            await asyncio.sleep(0.01)
    await asyncio.to_thread(exporter.stop)
    assert recording.active is None


async def test_nothing_is_recorded_while_no_collector_answers(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exporting, "LOOK_EVERY_S", 0.05)
    exporter = started("http://127.0.0.1:9")
    await asyncio.sleep(0.3)
    assert recording.active is None
    exporter.url = receiver.url + "/v1/traces"
    await recording_began()
    await asyncio.to_thread(exporter.stop)


async def test_a_collector_that_takes_nothing_ends_the_recording(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(exporting, "PAUSE_AFTER_S", 0.2)
    monkeypatch.setattr(exporting, "LOOK_EVERY_S", 0.05)
    receiver.status = 400
    exporter = started(receiver.url)
    recorder = await recording_began()
    for number in range(QUEUE_MAX * 2):
        recorder.record(span(number))
    assert recorder.dropped > QUEUE_MAX // 2 and len(recorder.queue) <= QUEUE_MAX
    async with asyncio.timeout(20):
        while recording.active is not None:
            await asyncio.sleep(0.05)
    await asyncio.sleep(0.5)
    assert recording.active is None and recorder.sent == 0 and recorder.failed
    assert caplog.text.count("the collector of spans took none for") == 1
    receiver.status = 200
    await recording_began()
    await asyncio.to_thread(exporter.stop)
    assert recorder.sent
