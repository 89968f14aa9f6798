"""Models get series of their own again after others are gone."""

import pytest

from services.api_gateway.metrics import model_labels
from services.api_gateway.metrics.model_labels import OTHER_MODELS, ModelLabels
from services.api_gateway.telemetry import Telemetry
from tests.unit.test_serving_telemetry import PRIORITIES, queue, series


@pytest.fixture(autouse=True)
def two_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_labels, "MODELS_MAX", 2)


def test_models_beyond_the_number_of_labels_share_one() -> None:
    labels = ModelLabels()
    assert [labels.of(name) for name in ("a", "b", "c", "a")] == ["a", "b", OTHER_MODELS, "a"]


def test_labels_of_models_that_are_gone_are_free_again() -> None:
    labels = ModelLabels()
    assert [labels.of(name) for name in ("a", "b")] == ["a", "b"]
    assert labels.forget(lambda name: name == "a") == ["a"]
    assert [labels.of(name) for name in ("c", "a")] == ["c", OTHER_MODELS]


def test_a_label_stays_while_one_is_free() -> None:
    labels = ModelLabels()
    labels.of("a")
    assert labels.forget(lambda name: True) == []


def test_a_label_stays_while_a_request_is_open() -> None:
    labels = ModelLabels()
    labels.began("a")
    labels.of("b")
    assert labels.forget(lambda name: True) == ["b"]
    assert labels.ended("a") == "a"
    labels.of("b")
    assert labels.forget(lambda name: True) == ["a", "b"]


def test_a_request_ends_under_the_label_under_which_it_began() -> None:
    labels = ModelLabels()
    for name in ("a", "b"):
        labels.of(name)
    assert labels.began("c") == labels.began("c") == OTHER_MODELS
    labels.forget(lambda name: True)
    assert labels.ended("c") == labels.ended("c") == OTHER_MODELS
    assert labels.shared == {}
    assert labels.began("c") == "c"


def test_the_series_of_a_forgotten_model_end_and_a_new_model_has_its_own() -> None:
    telemetry = Telemetry()
    models = telemetry.models
    for name in ("a", "b"):
        models.began(name)
        models.ended(name, route="/v1/x", status=200, streamed=True, first_s=1.0)
        models.retried(name)
    models.forget(lambda name: name == "a")
    models.queued({"c": queue(1)}, PRIORITIES)
    found = series(telemetry)
    assert [line for line in found if 'model="a"' in line] == []
    assert found['muster_model_requests_open{model="b"}'] == "0.0"
    assert found['muster_model_requests_waiting{model="c"}'] == "1.0"
    models.forget(lambda name: name == "c")
    models.began("a")
    models.ended("a", route="/v1/x", status=200, streamed=True, first_s=1.0)
    total = 'muster_model_requests_total{model="a",route="/v1/x",status="200",stream="true"}'
    assert series(telemetry)[total] == "1.0"
