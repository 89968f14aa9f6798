"""The metrics of the models' queues: each has a series, and none outlives its queue."""

from libs.common.state.cluster import Endpoint
from services.api_gateway.metrics.model_labels import MODELS_MAX
from services.api_gateway.serving.admission import Bounds
from services.api_gateway.serving.fairness import Flow
from services.api_gateway.serving.late_binding import LateBinding, Ticket
from services.api_gateway.serving.routing import Prompt, Router
from services.api_gateway.telemetry import Telemetry

PRIORITIES = ("normal", "low")


def queue(waiting: int) -> LateBinding[Endpoint]:
    """Return the queue of a model for which so many requests of 10 tokens wait."""
    found: LateBinding[Endpoint] = LateBinding(Bounds(1_000, 1_000, 1_000, 2, 1), Router())
    for _ in range(waiting):
        assert found.arrive(Ticket(Flow(0, "a"), Prompt(10)), 0) is None
    return found


def series(telemetry: Telemetry) -> dict[str, str]:
    lines = telemetry.text().decode().splitlines()
    return dict(line.rsplit(" ", 1) for line in lines if line.startswith("muster_model_"))


def test_models_beyond_the_number_of_series_are_summed() -> None:
    telemetry = Telemetry()
    queues = {f"m{number}": queue(1) for number in range(MODELS_MAX)}
    telemetry.models.queued({**queues, "x": queue(3), "y": queue(4), "z": queue(0)}, PRIORITIES)
    found = series(telemetry)
    assert found['muster_model_requests_waiting{model="m0"}'] == "1.0"
    assert found['muster_model_requests_waiting{model="other"}'] == "7.0"
    assert found['muster_model_waiting_tokens{model="other"}'] == "70.0"
    assert found['muster_model_jain_index{model="other",priority="low"}'] == "1.0"


def test_the_series_of_a_deleted_queue_end() -> None:
    telemetry = Telemetry()
    telemetry.models.queued({"m": queue(1), "n": queue(2)}, PRIORITIES)
    telemetry.models.queued({"n": queue(0)}, PRIORITIES)
    assert series(telemetry) == {
        'muster_model_requests_waiting{model="n"}': "0.0",
        'muster_model_waiting_tokens{model="n"}': "0.0",
        'muster_model_jain_index{model="n",priority="normal"}': "1.0",
        'muster_model_jain_index{model="n",priority="low"}': "1.0",
    }
