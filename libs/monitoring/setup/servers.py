"""Requests to Grafana and Prometheus: write the board, and check what is there."""

import json
from collections.abc import Mapping
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any, Final
from urllib.parse import quote, urlsplit

from libs.common.errors import Refused, Unavailable
from libs.monitoring.board import UID, board

ANSWER_S: Final = 15.0
ANSWER_BYTES_MAX: Final = 16 << 20


class Server:
    """A server by its base address. `bearer` is sent as a bearer token, if it is set."""

    def __init__(self, url: str, bearer: str = "") -> None:
        """Raises Refused for an address that is none."""
        self.url = url.rstrip("/")
        self.parts = urlsplit(self.url)
        if self.parts.scheme not in ("http", "https") or not self.parts.hostname:
            raise Refused(
                f"{url!r} is no address: write http://HOST:PORT or https://HOST[:PORT][/PATH]"
            )
        self.headers = {"authorization": f"Bearer {bearer}"} if bearer else {}

    def get(self, path: str) -> Any:  # noqa: ANN401  what JSON holds
        return self._ask("GET", path, None)

    def post(self, path: str, body: Mapping[str, object]) -> Any:  # noqa: ANN401
        return self._ask("POST", path, json.dumps(body).encode())

    def _ask(self, method: str, path: str, body: bytes | None) -> Any:  # noqa: ANN401
        """Return the answer's JSON. Raises Unavailable, or Refused with the server's own words."""
        kind = HTTPSConnection if self.parts.scheme == "https" else HTTPConnection
        connection = kind(self.parts.hostname or "", self.parts.port, timeout=ANSWER_S)
        headers = {**self.headers, "content-type": "application/json"}
        try:
            connection.request(method, self.parts.path + path, body, headers)
            answer = connection.getresponse()
            return self._read(answer, path)
        except (OSError, HTTPException) as error:
            raise Unavailable(f"{self.url} does not answer ({error}): is it up?") from error
        finally:
            connection.close()

    def _read(self, answer: HTTPResponse, path: str) -> Any:  # noqa: ANN401
        text = answer.read(ANSWER_BYTES_MAX).decode(errors="replace")
        if answer.status in (401, 403):
            raise Refused(
                f"{self.url}{path} answered {answer.status}: the token is missing or may not do "
                "this; set GRAFANA_TOKEN to one of a service account that may write dashboards"
            )
        if answer.status >= 400:
            raise Refused(f"{self.url}{path} answered {answer.status}: {' '.join(text.split())}")
        try:
            return json.loads(text)
        except ValueError as error:
            raise Refused(f"{self.url}{path} answered no JSON: is the address right?") from error


def write_board(grafana: Server, folder: str, dry_run: bool) -> list[str]:
    """Write the board into Grafana, read it back, and return what was done. Raises Refused and
    Unavailable.
    """
    sources = [one["name"] for one in grafana.get("/api/datasources") if _is_prometheus(one)]
    told = (
        f"data sources for it: {', '.join(sources)}"
        if sources
        else "there is no data source of type Prometheus yet: add one in Grafana"
    )
    if dry_run:
        return [f"the board {UID} would be written to {grafana.url} (dry run)", told]
    body: dict[str, object] = {"dashboard": board(), "overwrite": True}
    if folder:
        body["folderUid"] = folder
    made = grafana.post("/api/dashboards/db", body)
    kept = grafana.get(f"/api/dashboards/uid/{quote(UID)}")["dashboard"]
    if len(kept["panels"]) != len(board()["panels"]):
        raise Refused(f"Grafana keeps {len(kept['panels'])} panels of {len(board()['panels'])}")
    return [f"wrote the board to {grafana.url}{made.get('url', '')}", told]


def _is_prometheus(source: Mapping[str, object]) -> bool:
    return source.get("type") == "prometheus"


def check_prometheus(prometheus: Server, rules: int) -> tuple[list[str], list[str]]:
    """Return what is well, and what is missing, of targets, rules and metrics.

    `rules` is the number of alerts that there should be. Raises Refused and Unavailable.
    """
    well: list[str] = []
    faults: list[str] = []
    targets = prometheus.get("/api/v1/targets?state=active")["data"]["activeTargets"]
    ours = [one for one in targets if one["labels"].get("job", "").startswith("muster-")]
    down = [one["scrapeUrl"] for one in ours if one["health"] == "down"]
    if not ours:
        faults.append("no target has a job named muster-...: see `monitoring_setup.py scrape`")
    elif down:
        faults.append(f"{len(down)} of {len(ours)} targets do not answer: {', '.join(down)}")
    else:
        well.append(f"{len(ours)} targets answer")
    groups = prometheus.get("/api/v1/rules?type=alert")["data"]["groups"]
    found = [rule for group in groups for rule in group["rules"] if _is_ours(rule)]
    broken = [rule["name"] for rule in found if rule.get("health") == "err"]
    if len(found) != rules or broken:
        names = f", with errors: {', '.join(broken)}" if broken else ""
        faults.append(f"{len(found)} of {rules} alerts are loaded{names}")
    else:
        well.append(f"{len(found)} alerts are loaded")
    for metric, lack in METRICS.items():
        there = prometheus.get(f"/api/v1/query?query={quote(f'count({metric})')}")["data"]["result"]
        (well if there else faults).append(f"{metric} has data" if there else lack)
    return well, faults


def _is_ours(rule: Mapping[str, Any]) -> bool:
    return str(rule["name"]).startswith("Muster")


# A metric of each source, and what to do if it has no data.
METRICS: Final = {
    "muster_nodes": "muster_nodes has no data: no gateway is scraped",
    "muster_gpu_up": "muster_gpu_up has no data: no node is scraped, or none has devices",
    "muster_tenant_held_gpus": (
        "muster_tenant_held_gpus has no data: scrape gateways with the key of an operator"
    ),
}
