"""Functions as jobs on a whole embedded cluster of three nodes."""

import os
from collections.abc import AsyncIterator
from pathlib import Path

import muster
import pytest
import pytest_asyncio

from libs.client.errors import FunctionFailed, InvalidRequest, PythonMismatch, TimedOut
from libs.client.function import packed
from tests.integration.client_world import ClientWorld, client_world

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(240)]

WAIT_S = 60.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ClientWorld]:
    async with client_world(tmp_path_factory.mktemp("functions")) as made:
        yield made


async def test_a_function_runs_on_three_nodes_and_each_result_comes_back(
    world: ClientWorld,
) -> None:
    @muster.job(client=world.client, nodes=3, gpus=1)
    def where(word: str) -> tuple[str, str, str]:
        print("on", os.environ["RANK"])
        return word, os.environ["RANK"], os.environ["CUDA_VISIBLE_DEVICES"]

    future = where("hi")
    found = future.results(timeout_s=WAIT_S)
    assert [each[:2] for each in found] == [("hi", "0"), ("hi", "1"), ("hi", "2")]
    assert len({each[2] for each in found}) == 3 and len(set(future.job().node_ids)) == 3
    assert future.result(rank=2) == found[2] and future.status == "completed" and future.done()
    assert list(future.logs(rank=1)) == ["on 1"]
    assert future.job().name == "where" and where.local is where.__wrapped__


async def test_the_items_of_a_map_run_as_one_array(world: ClientWorld) -> None:
    @muster.job(client=world.client)
    def square(number: int) -> int:
        return number * number

    futures = square.map(range(5), at_once=2)
    assert [future.result(timeout_s=WAIT_S) for future in futures] == [0, 1, 4, 9, 16]
    assert {future.status for future in futures} == {"completed"}


async def test_an_exception_of_the_function_is_raised_here(world: ClientWorld) -> None:
    @muster.job(client=world.client)
    def fails() -> None:
        raise ZeroDivisionError("on the node")

    future = fails()
    with pytest.raises(ZeroDivisionError, match="on the node") as found:
        future.result(timeout_s=WAIT_S)
    assert "in fails" in found.value.__notes__[0] and future.status == "failed"


async def test_a_function_that_is_killed_gives_its_last_lines(world: ClientWorld) -> None:
    @muster.job(client=world.client)
    def dies() -> None:
        os.write(2, b"no memory left\n")
        os.kill(os.getpid(), 9)

    with pytest.raises(FunctionFailed, match="no memory left") as found:
        dies().result(timeout_s=WAIT_S)
    assert found.value.state == "failed"


async def test_a_function_is_cancelled_and_a_wait_has_a_timeout(world: ClientWorld) -> None:
    @muster.job(client=world.client, grace_s=0)
    def sleeps() -> None:
        import time

        time.sleep(1_000)

    future = sleeps()
    with pytest.raises(TimedOut):
        future.result(timeout_s=0.3)
    future.cancel()
    with pytest.raises(FunctionFailed, match="cancelled"):
        future.result(timeout_s=WAIT_S)


async def test_another_version_of_python_is_named(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed, "VERSION", "3.99")
    with pytest.raises(PythonMismatch, match=r"pickled by Python 3.99"):
        world.client.functions.call(str).result(timeout_s=WAIT_S)


async def test_modules_of_a_directory_go_along(world: ClientWorld, tmp_path: Path) -> None:
    (tmp_path / "sent_module.py").write_text("ANSWER = 42\n")

    @muster.job(client=world.client, upload=tmp_path)
    def answer() -> int:
        import sent_module  # type: ignore[import-not-found]

        return int(sent_module.ANSWER)

    assert answer().result(timeout_s=WAIT_S) == 42


async def test_a_function_may_call_itself_and_its_decorated_name_means_itself(
    world: ClientWorld,
) -> None:
    @muster.job(client=world.client)
    def factorial(number: int) -> int:
        return 1 if number < 2 else number * factorial(number - 1)  # type: ignore[operator,return-value]

    assert factorial(5).result(timeout_s=WAIT_S) == 120


async def test_the_profile_gives_the_client_if_none_is_named(
    world: ClientWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUSTER_PROFILE", str(world.profile))
    monkeypatch.delenv("MUSTER_URL", raising=False)

    @muster.job
    def one() -> int:
        return 1

    assert one().result(timeout_s=WAIT_S) == 1


async def test_the_asynchronous_client_calls_functions_too(world: ClientWorld) -> None:
    future = await world.many.functions.call(max, [3, 7], gpus=1)
    assert await future.result(timeout_s=WAIT_S) == 7
    assert await future.status == "completed"


async def test_bad_fields_of_a_function_are_refused_by_name(world: ClientWorld) -> None:
    with pytest.raises(InvalidRequest) as found:
        world.client.functions.call(str, nodes=0)
    assert found.value.field == "nodes"
    with pytest.raises(InvalidRequest, match="map makes the array"):
        world.client.functions.map(str, [1], array="0-1")
