"""The starter starts elements as if each had been spawned, and it may be killed at any time."""

import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from supervision_world import World, world_at
from test_element_results import batch, described, seen
from test_short_elements import NUMBERS, elements, printed
from test_short_elements import seen as seen_of
from test_supervision_child import order

from services.node_agent.supervisor import child
from services.node_agent.supervisor.elements import Elements
from services.node_agent.supervisor.ending import Ending
from services.node_agent.supervisor.order import Order
from services.node_agent.supervisor.starter import Starter

pytestmark = pytest.mark.skipif(not child.HAS_GUARD, reason="no guard was built for this machine")
GIVEN = {"numbers": [7, 8, 9], "names": ["N"], "first": 0, "limit_s": 0, "grace_s": 1}
# All that an element may have from its ancestors, without its pids.
SHOWN = """
id; pwd; umask; env | grep -v ^_= | sort; ls /proc/$$/fd
cat /proc/self/oom_score_adj /proc/self/limits
grep -E '^(Sig[BCIP]|Shd|Cap|NoNewPrivs|Groups)' /proc/self/status
set -- $(cat /proc/$$/stat); test $1 = $5 -a $1 = $6 && echo "leads its session, below $4"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder, with the first descriptors in use, as in a supervisor.

    Unlike a supervisor, this process may have children that other tests left.
    """
    monkeypatch.chdir(tmp_path)
    left = children()
    monkeypatch.setattr(Starter, "is_alone", lambda starter: children() - left == {starter.pid})
    used = [os.open(os.devnull, os.O_RDONLY) for _ in range(6)]
    yield tmp_path
    for descriptor in used:
        os.close(descriptor)


def children() -> set[int]:
    found = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return {int(pid) for pid in found.split()}


def output_of(given: Order, is_started: bool) -> str:
    """Return the output of a command, by a starter or spawned."""
    ours, ends = child.open_streams(given)
    starter = Starter(given, ends)
    variables = {b"NUMBER": b"7", b"TASK": b"7"}
    if is_started:
        assert starter.start(variables)
        while not (pid := starter.take_pid()):
            time.sleep(0.001)
        _, status = os.waitpid(pid, 0)
    else:
        _, status = os.waitpid(child.Command(given, ends).start(variables), 0)
    assert status == 0
    starter.close()
    child.close_ends(ends)
    try:
        return os.read(ours.stdout, 1 << 16).decode()
    finally:
        for descriptor in (ours.stdout, ours.stderr, ours.status):
            os.close(descriptor)


@pytest.mark.parametrize("account", [[], [65534, 65533, 7, 9]])
def test_an_element_that_the_starter_starts_is_as_if_it_had_been_spawned(
    tmp_path: Path, account: list[int]
) -> None:
    if account and os.geteuid() != 0:
        pytest.skip("only root can give a job another user")
    given = order(tmp_path, "sh", "-c", SHOWN, account=account)
    given["env"] |= {"NUMBER": "1", "OTHER": "x=y"}
    started = output_of(given, is_started=True)
    assert started == output_of(given, is_started=False)
    assert "NUMBER=7" in started and "TASK=7" in started and "1000" in started
    assert f"leads its session, below {os.getpid()}" in started


def end_one(ours: Elements, ending: Ending) -> None:
    """Wait for an element, and record its end. Other tests may have left children."""
    while not ours.pid:
        time.sleep(0.001)
    _, status = os.waitpid(ours.pid, 0)
    with contextlib.suppress(BlockingIOError):  # it was executed
        ours.read_failure()
    ours.ended(status, ending)


def test_an_element_whose_starter_was_killed_before_it_began_has_not_begun() -> None:
    ours, ending = batch(elements=GIVEN), Ending(0, None)
    ours.begin_first()
    end_one(ours, ending)
    assert ours.begin_next()
    end_one(ours, ending)
    starter = ours.starter_pid
    assert starter
    os.kill(starter, signal.SIGSTOP)
    assert ours.begin_next()
    os.kill(starter, signal.SIGKILL)
    assert ours.has_starter_ended(os.waitpid(starter, 0)[0])
    ours.ended(None, ending)
    assert seen() == ([3, 3], 2) and not ours.begin_next()
    assert "starter" in described(ours)["detail"]
    ours.close()


def test_an_element_is_spawned_if_the_starter_was_killed_meanwhile() -> None:
    ours, ending = batch(elements=GIVEN), Ending(0, None)
    ours.begin_first()
    end_one(ours, ending)
    assert ours.begin_next()
    end_one(ours, ending)
    os.kill(ours.starter_pid, signal.SIGKILL)
    os.waitid(os.P_PID, ours.starter_pid, os.WEXITED | os.WNOWAIT)
    assert ours.begin_next() and ours.pid and not ours.starter_pid
    end_one(ours, ending)
    assert seen() == ([3, 3, 3], 3) and ours.is_complete
    ours.close()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with world_at(tmp_path / "agent") as made:
        yield made


async def test_elements_that_kill_their_starter_have_their_results(world: World) -> None:
    beside = "set -- $(cat /proc/$PPID/task/$PPID/children); echo $# processes"
    kill = "for pid; do test $pid = $$ || kill -9 $pid; done"
    # The element ends once the supervisor has noticed that.
    wait = "for pid; do test $pid = $$ || while kill -0 $pid; do sleep 0.001; done 2>&-; done"
    script = f"{beside}; {kill}; {wait}; exit $((MUSTER_ARRAY_TASK_ID % 3))"
    key = await world.shell("job", script, elements=elements())
    record = await world.told(key, "exited")
    assert record["clean"] and seen_of(world, key) == (0, [each % 3 for each in NUMBERS], 40)
    counted = [line for line in printed(world, key).splitlines() if "processes" in line]
    assert counted == ["1 processes"] + ["2 processes"] * 39
