"""/livez, /readyz and /metrics, which need no key, and /v1/version."""

from starlette.requests import Request
from starlette.responses import Response

from libs.common import facts, installed
from libs.common.transport import snapshot
from services.api_gateway.access import roles
from services.api_gateway.access.auth import bearer
from services.api_gateway.gateway import Gateway
from services.api_gateway.http.queries import answer, gateway_of
from services.api_gateway.http.routing import APIRouter

router = APIRouter(tags=["health"])


@router.get("/livez")
async def livez(request: Request) -> Response:
    """Answer 200 while the process's event loop runs."""
    return answer({"live": True})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Answer 200 if this gateway follows the log and records in it, else 503; with the checks."""
    checks = readiness(gateway_of(request))
    ready = all(check["ok"] for check in checks)
    return answer({"ready": ready, "checks": checks}, 200 if ready else 503)


def readiness(gateway: Gateway) -> list[dict[str, object]]:
    """Return the checks of /readyz."""
    silence_s = (gateway.clock.boot_ns() - gateway.heard_boot_ns) / 1e9
    return [
        {
            "check": "replayed",
            "ok": gateway.caught_up,
            "detail": f"folded up to {gateway.cluster.seq}",
        },
        {
            "check": "log_heard",
            "ok": silence_s < gateway.settings.ready_silence_ms / 1_000,
            "detail": f"{silence_s:.1f} s ago",
        },
        {
            "check": "lag",
            "ok": gateway.lag <= gateway.settings.ready_lag_commits,
            "detail": f"{gateway.lag} commits",
        },
        {
            "check": "writer",
            "ok": not gateway.writer.is_late,
            "detail": _writer_detail(gateway),
        },
    ]


def _writer_detail(gateway: Gateway) -> str:
    if gateway.writer.is_late:
        return f"no commit of this gateway was stored for {gateway.writer.budget_s:.0f} s or longer"
    return "the log stores commits of this gateway"


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """Return metrics in the Prometheus text format; with an operator's key those of keys too."""
    gateway = gateway_of(request)
    given = bearer(request.headers.get("authorization", ""))
    principal, _ = gateway.keys.principal(given, gateway.cluster, gateway.clock.wall_ns())
    is_operator = principal is not None and roles.sees_all(principal)
    accept = request.headers.get("accept", "")
    text, content_type = gateway.telemetry.exposed(accept, with_usage=is_operator)
    return Response(text, headers={"content-type": content_type})


@router.get("/v1/version")
async def show_version(request: Request) -> Response:
    """Return the versions of the program, of facts and of snapshots."""
    return answer(
        {
            "version": installed.version(),
            "facts_version": facts.READS,
            "snapshot_version": snapshot.SNAPSHOT_VERSION,
        }
    )
