"""scripts/monitoring_setup.py as operators run it: files, Grafana's API, and a real Prometheus."""

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from libs.embedded import servers
from libs.monitoring.board import UID, board
from libs.monitoring.setup.__main__ import main
from services.node_agent.metrics.scraping import scraped
from tests.metrics_catalogue import node_text
from tests.prometheus import prometheus
from tests.tidy import ROOT

SCRIPT: Final = ROOT / "scripts" / "monitoring_setup.py"
RULES: Final = ROOT / "deploy" / "prometheus" / "gpu-cluster-alerts.yaml"
TOKEN: Final = "secret-token"
ANSWER_S: Final = 60.0


class Ran(NamedTuple):
    """The end of one run of the command."""

    returncode: int
    stdout: str
    stderr: str


def run(*line: str, **environment: str) -> Ran:
    """Run the command in this process, which is faster than its script."""
    out, err = io.StringIO(), io.StringIO()
    before = dict(os.environ)
    os.environ.update(environment)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(line))
    finally:
        os.environ.clear()
        os.environ.update(before)
    return Ran(code, out.getvalue(), err.getvalue())


class Grafana(ThreadingHTTPServer):
    """Grafana's API for dashboards, as far as the script uses it. It keeps what it is given."""

    kept: dict[str, Any]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/grafana"


class Answers(BaseHTTPRequestHandler):
    server: Grafana

    def do_GET(self) -> None:
        if self.path == "/grafana/api/datasources":
            self._answer(200, [{"name": "main", "type": "prometheus"}])
        elif self.path == f"/grafana/api/dashboards/uid/{UID}":
            self._answer(200, self.server.kept)
        else:
            self._answer(404, {"message": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.kept = body
        self._answer(200, {"uid": UID, "url": f"/d/{UID}", "status": "success"})

    def log_message(self, format: str, *args: object) -> None:
        pass

    def _answer(self, status: int, body: object) -> None:
        if self.headers["authorization"] != f"Bearer {TOKEN}":
            status, body = 401, {"message": "Unauthorized"}
        text = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def grafana() -> Iterator[Grafana]:
    server = Grafana(("127.0.0.1", 0), Answers)
    server.kept = {}
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_help_says_what_each_verb_does() -> None:
    line = [sys.executable, str(SCRIPT), "--help"]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=ANSWER_S)
    assert done.returncode == 0
    for words in ("Install the alerts", "Install the board", "Print what Prometheus", "examples:"):
        assert words in done.stdout


def test_files_are_written_once_and_then_up_to_date(tmp_path: Path) -> None:
    first = run("rules", "--into", str(tmp_path), "--page", "https://docs.example/monitoring")
    assert first.returncode == 0 and "is new" in first.stdout, first.stderr
    written = tmp_path / RULES.name
    groups = yaml.safe_load(written.read_text())["groups"]
    links = [rule["annotations"]["runbook_url"] for group in groups for rule in group["rules"]]
    assert all(link.startswith("https://docs.example/monitoring#muster") for link in links)
    again = run("rules", "--into", str(tmp_path), "--page", "https://docs.example/monitoring")
    assert "up to date" in again.stdout
    written.write_text("groups: []\n")
    assert "replaced an older one" in run("rules", "--into", str(tmp_path)).stdout
    assert written.read_text() == RULES.read_text()
    assert run("board", "--into", str(tmp_path)).returncode == 0
    assert json.loads((tmp_path / f"{UID}.json").read_text()) == board()


def test_dry_run_writes_nothing(tmp_path: Path) -> None:
    done = run("board", "--into", str(tmp_path), "--dry-run")
    assert done.returncode == 0 and "nothing was written" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("rules", "--into", str(tmp_path / "none"))
    assert done.returncode != 0
    assert "is no directory: create it, or name another one with --into" in done.stderr


def test_board_goes_to_grafana_with_the_token_of_the_environment(grafana: Grafana) -> None:
    done = run("board", "--grafana", grafana.url, "--folder", "gpus", GRAFANA_TOKEN=TOKEN)
    assert done.returncode == 0, done.stderr
    assert f"wrote the board to {grafana.url}/d/{UID}" in done.stdout
    assert "data sources for it: main" in done.stdout
    assert grafana.kept["dashboard"] == board()
    assert (grafana.kept["folderUid"], grafana.kept["overwrite"]) == ("gpus", True)


def test_wrong_token_is_said_and_no_token_is_asked_for(grafana: Grafana) -> None:
    wrong = run("board", "--grafana", grafana.url, GRAFANA_TOKEN="other")
    assert wrong.returncode != 0 and "answered 401" in wrong.stderr
    assert "other" not in wrong.stdout + wrong.stderr
    none = run("board", "--grafana", grafana.url, GRAFANA_TOKEN="")
    assert none.returncode != 0 and "GRAFANA_TOKEN is not set" in none.stderr
    assert grafana.kept == {}


def test_server_that_does_not_answer_is_named() -> None:
    (port,) = servers.free_ports(1)
    done = run("check", "--prometheus", f"http://127.0.0.1:{port}")
    assert done.returncode != 0 and f"http://127.0.0.1:{port} does not answer" in done.stderr
    assert run("check", "--prometheus", "prometheus").returncode != 0


async def test_check_names_what_a_prometheus_lacks(tmp_path: Path) -> None:
    async def text() -> str:
        return node_text()

    (port,) = servers.free_ports(1)
    job = yaml.safe_load(run("scrape", "--node", f"127.0.0.1:{port}").stdout)["scrape_configs"][0]
    job["scrape_interval"] = "1s"
    async with scraped("127.0.0.1", port, text), prometheus(tmp_path, [job], [RULES]) as found:
        async with asyncio.timeout(ANSWER_S):
            while not await found.query("muster_gpu_up"):
                await asyncio.sleep(0.1)
        done = await _aside("check", "--prometheus", found.url)
    assert done.returncode == 1
    assert "ok       1 targets answer" in done.stdout
    assert "ok       23 alerts are loaded" in done.stdout
    assert "ok       muster_gpu_up has data" in done.stdout
    assert "missing  muster_nodes has no data: no gateway is scraped" in done.stdout


async def _aside(*line: str) -> Ran:
    return await asyncio.to_thread(run, *line)
