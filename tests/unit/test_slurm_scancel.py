"""The jobs that scancel selects, and the signals that it sends."""

from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from libs.cli.slurm.options import parse
from libs.cli.slurm.requests import nodes_of, own_user
from libs.cli.slurm.scancel import TABLE, main, selected, signal_of
from libs.client.profile import Profile
from libs.common.errors import Refused

BASE: dict[str, Any] = {"user": "ada", "name": "train", "queue": "default", "node_ids": []}
ARRAY: dict[str, Any] = {
    **BASE,
    "id": "ja",
    "state": "queued",
    "array": {"numbers": "0-9", "states": {"queued": 8, "running": 1, "completed": 1}},
}
RUNS: dict[str, Any] = {
    **BASE,
    "id": "ja_0",
    "element_of": "ja",
    "state": "running",
    "node_ids": ["node-1"],
}
WAITS: dict[str, Any] = {**BASE, "id": "ja_1", "element_of": "ja", "state": "queued"}
JOB: dict[str, Any] = {
    **BASE,
    "id": "jb",
    "state": "running",
    "node_ids": ["node-2"],
    "user": "eve",
}


def chosen(jobs: list[dict[str, Any]], *words: str) -> list[str]:
    return selected(jobs, parse(TABLE, words), "ada")


@pytest.mark.parametrize("text", ["USR1", "SIGUSR2", "HUP", "STOP", "10", ""])
def test_a_signal_that_a_job_outlives_is_refused(text: str) -> None:
    with pytest.raises(Refused, match=r"muster exec JOB -- kill"):
        signal_of(text)


def test_a_signal_that_ends_a_job_is_sent() -> None:
    found = [signal_of(text) for text in ("TERM", "sigkill", "9", "INT")]
    assert found == ["TERM", "KILL", "KILL", "INT"]


@pytest.mark.parametrize("words", [["-b", "ja"], ["--full", "ja"], ["-s", "USR1", "ja"]])
def test_a_signal_to_a_part_of_a_job_is_refused_before_anything_is_cancelled(
    words: list[str],
) -> None:
    with pytest.raises(Refused, match=r"muster exec JOB -- kill"):
        main(words)


def test_ids_and_filters_select_the_jobs_that_match_both() -> None:
    assert chosen([JOB, WAITS], "--me", "jb", "ja_1") == ["ja_1"]
    assert chosen([JOB], "-t", "PENDING", "jb") == []


def test_running_elements_are_selected_by_their_own_state_and_nodes() -> None:
    jobs = [ARRAY, RUNS, WAITS, JOB]
    assert chosen(jobs, "-t", "RUNNING") == ["ja_0", "jb"]
    assert chosen(jobs, "-w", "node-1") == ["ja_0"]
    begun = {**ARRAY, "state": "begun"}
    assert chosen([begun, RUNS, WAITS], "-t", "PENDING") == ["ja_1"]


def test_waiting_elements_of_an_array_that_runs_are_not_cancelled_with_the_running_ones() -> None:
    not_begun = [f"ja_{number}" for number in range(9, 2, -1)]
    assert chosen([ARRAY, RUNS, WAITS], "-t", "PENDING") == ["ja_1", *not_begun]
    assert chosen([ARRAY, RUNS], "-t", "PENDING") == [*not_begun, "ja_2"]
    assert chosen([ARRAY], "-t", "PENDING") == ["ja"]


def test_too_many_waiting_elements_are_refused_before_anything_is_cancelled() -> None:
    many = {**ARRAY, "array": {"numbers": "0-1999", "states": {"queued": 1_500, "running": 1}}}
    with pytest.raises(Refused, match="1500 elements of the array ja wait while others run"):
        chosen([many, RUNS], "-t", "PENDING")


def test_an_array_without_a_state_is_cancelled_as_a_whole() -> None:
    assert chosen([ARRAY, RUNS, WAITS], "-u", "ada") == ["ja"]
    assert chosen([ARRAY, RUNS], "-t", "PENDING,RUNNING") == ["ja"]


def test_nodes_that_cannot_be_read_are_refused() -> None:
    with pytest.raises(Refused, match=r"--nodelist=a\[: expected nodes"):
        nodes_of("nodelist", "a[")


class Answers(BaseHTTPRequestHandler):
    """Answers each request with the key's user."""

    user = "ada"

    def do_GET(self) -> None:
        body = f'{{"user": "{self.user if self.path == "/v1/whoami" else ""}"}}'.encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Write nothing."""


def test_the_own_jobs_of_a_key_are_those_of_its_user() -> None:
    assert own_user(Profile("http://x", "", "", "eve", "")) == "eve"
    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        profile = Profile(f"http://127.0.0.1:{server.server_port}", "key", "test", "", "")
        try:
            assert own_user(profile) == "ada"
            Answers.user = ""
            with pytest.raises(Refused, match="belongs to no user"):
                own_user(profile)
        finally:
            Answers.user = "ada"
            server.shutdown()
