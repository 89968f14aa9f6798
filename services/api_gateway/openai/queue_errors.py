"""The errors for requests that may not wait, or waited too long.

Tests: tests/integration/test_openai_queues.py.
"""

from typing import Final

from libs.common.state.cluster import Endpoint
from services.api_gateway.openai.errors import ApiError
from services.api_gateway.serving.admission import TENANT_FULL, TENANT_REQUESTS, Refused
from services.api_gateway.serving.fairness import Flow
from services.api_gateway.serving.late_binding import LateBinding

# The header Retry-After has this value while no replica is ready.
STARTING_S: Final = 5


def none_ready(model: str, why: str, retry_after_s: int = STARTING_S) -> ApiError:
    """Return the error for a model without a ready replica."""
    return ApiError(
        503,
        f"the model {model!r} has no ready replica: {why}",
        "model_not_ready",
        "model",
        retry_after_s=retry_after_s,
    )


def wakes(model: str, left_s: int) -> ApiError:
    """Return the error for a request that cannot wait until the model is awake."""
    return ApiError(
        503,
        f"the model {model!r} wakes, and is expected to be ready in {left_s} s, which is longer "
        "than a request may wait: try again then, or raise MUSTER_MODEL_WAIT_MS",
        "model_not_ready",
        "model",
        retry_after_s=left_s,
    )


def refusal(model: str, rules: LateBinding[Endpoint], flow: Flow, refused: Refused) -> ApiError:
    """Return the error for a request that may not wait."""
    if refused.reason == TENANT_FULL:
        tokens, setting = rules.of_tenant[flow.tenant], "TENANT_WAITING_TOKENS"
        text = f"{tokens} input tokens of tenant {flow.tenant} wait for the model {model!r}"
    elif refused.reason == TENANT_REQUESTS:
        requests, setting = rules.requests_of[flow.tenant], "REQUESTS_MAX"
        text = f"{requests} requests of tenant {flow.tenant} wait in this gateway"
    else:
        tokens, setting = rules.waiting_tokens, "WAITING_TOKENS"
        text = f"{tokens} input tokens of all tenants wait for the model {model!r}"
    error = ApiError(
        refused.status,
        f"{text}, and this request would exceed the bound: try again in "
        f"{refused.retry_after_s} s, or raise MUSTER_MODEL_{setting}",
        "queue_full",
        retry_after_s=refused.retry_after_s,
    )
    error.type = "requests" if refused.reason == TENANT_REQUESTS else "tokens"
    return error


def too_late(model: str, waited_s: float, retry_after_s: int) -> ApiError:
    """Return the error for a request that waited too long for room."""
    return ApiError(
        503,
        f"no replica of the model {model!r} had room for this request within {waited_s:g} s: try "
        "again, or add replicas with `muster scale`",
        "overloaded",
        retry_after_s=retry_after_s,
    )
