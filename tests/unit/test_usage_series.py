"""Keys of models get series of their own again after others are gone."""

import pytest

from libs.common.facts import ModelUse
from libs.common.model import JobId, TenantId
from services.api_gateway import telemetry as module
from services.api_gateway.access.auth import _host_principal, is_recorded, new_key_id
from services.api_gateway.sign_on.sign_on import key_id_of
from services.api_gateway.telemetry import UsageTelemetry


@pytest.fixture(autouse=True)
def two_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "KEYS_MAX", 2)


def used(model: str, key_id: str) -> ModelUse:
    return ModelUse(
        tenant=TenantId("t"),
        user="ann",
        key_id=key_id,
        owner=TenantId("t"),
        model=model,
        job_id=JobId("j"),
        attempt=1,
        requests=1,
        input_tokens=10,
        output_tokens=5,
        share_ms=100,
    )


def keys_of(usage: UsageTelemetry) -> list[tuple[str, str]]:
    """Return the model and the key of each series of GPU seconds."""
    found = [
        (sample.labels["model"], sample.labels["key"])
        for metric in usage.registry.collect()
        for sample in metric.samples
        if sample.name == "muster_model_gpu_seconds_total"
    ]
    return sorted(found)


def test_keys_beyond_the_number_of_series_share_one() -> None:
    usage = UsageTelemetry()
    for key_id in ("k1", "k2", "k3", "k4"):
        usage.note(used("m", key_id))
    assert keys_of(usage) == [("m", "k1"), ("m", "k2"), ("other", "")]


def test_series_of_keys_and_models_that_are_gone_make_room_for_others() -> None:
    usage = UsageTelemetry()
    for model, key_id in (("m", "k1"), ("gone", "k2"), ("m", "k3")):
        usage.note(used(model, key_id))
    usage.forget(lambda model, key_id: model == "gone" or key_id == "k1")
    assert keys_of(usage) == [("other", "")]
    usage.note(used("m", "k3"))
    usage.note(used("m", "k4"))
    assert keys_of(usage) == [("m", "k3"), ("m", "k4"), ("other", "")]


def test_series_of_gone_keys_stay_while_there_is_room() -> None:
    usage = UsageTelemetry()
    usage.note(used("m", "k1"))
    usage.forget(lambda model, key_id: True)
    assert keys_of(usage) == [("m", "k1")]


def test_only_the_ids_of_keys_in_the_log_have_no_dash() -> None:
    assert is_recorded(new_key_id())
    others = (_host_principal("0123456789", "admin").key_id, key_id_of("subject"), "")
    assert not any(is_recorded(key_id) for key_id in others)
