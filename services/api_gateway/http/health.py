"""/livez, /readyz, /metrics without a key, and /v1/version."""

from importlib.metadata import PackageNotFoundError, version
from typing import Final

from fastapi import APIRouter, Request
from starlette.responses import Response

from libs.common import facts
from libs.common.transport import snapshot
from services.api_gateway.http.queries import answer, gateway_of

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter(tags=["health"])


@router.get("/livez")
async def livez() -> Response:
    """200 while the process's loop runs."""
    return answer({"live": True})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """200 when this gateway's view of the log is up to date, else 503; both with the checks."""
    checks = gateway_of(request).readiness()
    ready = all(check["ok"] for check in checks)
    return answer({"ready": ready, "checks": checks}, 200 if ready else 503)


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Prometheus text."""
    return Response(gateway_of(request).telemetry.text(), media_type=METRICS_TYPE)


@router.get("/v1/version")
async def show_version(request: Request) -> Response:
    """The versions of the program and of what it reads."""
    return answer(
        {
            "version": _version(),
            "facts_version": facts.READS,
            "snapshot_version": snapshot.SNAPSHOT_VERSION,
        }
    )


def _version() -> str:
    try:
        return version("muster-gpu")
    except PackageNotFoundError:
        return "unknown"
