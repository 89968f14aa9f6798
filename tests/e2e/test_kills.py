"""Every part of the cluster is killed in turn, while clients submit jobs at every gateway.

Set MUSTER_TEST_E2E_ROUNDS for more rounds. Nobody starts anything by hand: the engine's restart
policy (or the launcher) must bring each part back.
"""

import os
import threading
import time
from typing import Any, Final

import httpx2
import pytest

from tests.e2e.stack import AGAIN_S, PATIENCE_S, Stack, until

ROUNDS: Final = int(os.environ.get("MUSTER_TEST_E2E_ROUNDS") or 1)
CLIENTS: Final = 2
# One job in this time per client, and the time from one kill to the next.
EVERY_S: Final = 0.5
NEXT_S: Final = 6.0
ENDED_S: Final = 240.0
# A gang over all nodes for this long is started again if any node's agent loses its lease.
JOB: Final = ("sh", "-c", "sleep 1; echo done")


class Submitting(threading.Thread):
    """One client: it names each job, and repeats a submission until it is acknowledged."""

    def __init__(self, stack: Stack, number: int) -> None:
        super().__init__(daemon=True)
        self.number = number
        self.urls = list(stack.gateways.values())
        self.headers = {"Authorization": f"Bearer {stack.key}"}
        self.over = threading.Event()
        self.acknowledged: dict[str, str] = {}
        self.unanswered = 0
        self.longest_s = 0.0

    def run(self) -> None:
        with httpx2.Client(headers=self.headers, timeout=30) as session:
            count = 0
            while not self.over.wait(EVERY_S):
                name = f"kills-{self.number}-{count}"
                began = time.monotonic()
                self.acknowledged[name] = self._stored(session, name)
                self.longest_s = max(self.longest_s, time.monotonic() - began)
                count += 1

    def _stored(self, session: httpx2.Client, name: str) -> str:
        """Submit the job until one gateway acknowledges it; return its id."""
        body = {"name": name, "command": list(JOB), "gpus": 1, "workdir": "/tmp"}
        deadline, tries = time.monotonic() + PATIENCE_S, 0
        while time.monotonic() < deadline:
            url = self.urls[tries % len(self.urls)]
            tries += 1
            try:
                answer = session.post(
                    f"{url}/v1/jobs", json=body, headers={"Idempotency-Key": name}
                )
            except httpx2.HTTPError:
                self.unanswered += 1
                time.sleep(AGAIN_S)
                continue
            if answer.status_code in (200, 201):
                return str(answer.json()["id"])
            assert answer.status_code >= 500 or answer.status_code == 409, answer.text
            time.sleep(AGAIN_S)
        raise AssertionError(f"{name} was not acknowledged within {PATIENCE_S:.0f} s")


def shown(stack: Stack, path: str) -> Any:
    """Return a read's answer from any gateway that answers."""
    headers = {"Authorization": f"Bearer {stack.key}"}
    for url in stack.gateways.values():
        try:
            answer = httpx2.get(f"{url}{path}", headers=headers, timeout=30)
        except httpx2.HTTPError:
            continue
        if answer.status_code == 200:
            return answer.json()
    return None


def healthy_nodes(stack: Stack) -> int:
    found = shown(stack, "/v1/nodes")
    return sum(node["state"] == "healthy" for node in found["nodes"]) if found else 0


def state_of(stack: Stack, job_id: str) -> str:
    found = shown(stack, f"/v1/jobs/{job_id}")
    return str(found["state"]) if found else ""


@pytest.mark.drill
@pytest.mark.timeout(600 + 300 * ROUNDS)
def test_nothing_is_lost_while_every_part_is_killed_in_turn(stack: Stack) -> None:
    until(lambda: healthy_nodes(stack) == 4, "every node is healthy")
    clients = [Submitting(stack, number) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    began = time.monotonic()
    for _ in range(ROUNDS):
        for part in stack.parts:
            stack.kill(part)
            time.sleep(NEXT_S)
            assert all(client.is_alive() for client in clients), "a client gave up"
    for client in clients:
        client.over.set()
        client.join(PATIENCE_S)
    ids = [job for client in clients for job in client.acknowledged.values()]
    print(
        f"{len(stack.parts) * ROUNDS} kills in {time.monotonic() - began:.0f} s, "
        f"{len(ids)} jobs acknowledged, {sum(each.unanswered for each in clients)} tries without "
        f"an answer, longest submission {max(each.longest_s for each in clients):.1f} s"
    )
    assert len(set(ids)) == len(ids) > ROUNDS * len(stack.parts), "an id was given twice"
    left = list(ids)
    deadline = time.monotonic() + ENDED_S
    while left and time.monotonic() < deadline:
        left = [job for job in left if state_of(stack, job) != "completed"]
        time.sleep(AGAIN_S)
    assert not left, f"not completed: {[(job, state_of(stack, job)) for job in left]}"
    for job in ids:
        facts = [row["fact"]["kind"] for row in shown(stack, f"/v1/jobs/{job}/history")["facts"]]
        # An agent that was killed may report a start or an end again, which changes nothing.
        assert facts.count("job.submitted") == facts.count("job.closed") == 1, (job, facts)
    until(lambda: healthy_nodes(stack) == 4, "every node is healthy again")
    until(lambda: stack.verify().returncode == 0, "the archive has all of the log")
