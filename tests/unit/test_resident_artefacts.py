"""The store of compile products: its key, its verification, and what gives way."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from libs.common.messages import StartOrder
from libs.common.model import Gpu, GpuHold, GpuId, JobId, JobSpec, Serve
from services.node_agent.resident import fingerprint
from services.node_agent.resident.artefacts import Artefact, ArtefactStore
from services.node_agent.resident.trees import Differs

KEY = "k"
DRIVERS = {"nvidia": "550.1"}
GPU = Gpu(GpuId("g1"), 0, "nvidia", "H100", 80 << 30, (9, 0))


def start(**fields: Any) -> StartOrder:
    spec = JobSpec(**({"command": ("vllm", "serve"), "serve": Serve("chat", 1)} | fields))
    holds = (GpuHold(GpuId("g1")),)
    return StartOrder(JobId("chat-1"), 1, 1, 1, 0, holds, spec, "default", "u", (), 20_000)


def key(order: StartOrder, gpu: Gpu = GPU, **changed: Any) -> str:
    given: dict[str, Any] = {"drivers": DRIVERS, "packages": ["vllm-1"], "configuration": "c"}
    return fingerprint.key_of(order, [gpu], **(given | changed))


def test_the_key_changes_with_everything_that_a_compilation_depends_on() -> None:
    keys = [
        key(start()),
        key(start(command=("vllm", "serve", "--fast"))),
        key(start(env={"A": "1"})),
        key(start(image="vllm@sha256:1")),
        key(start(), replace(GPU, compute_capability=(10, 0))),
        key(start(), replace(GPU, model="H200")),
        key(start(), drivers={"nvidia": "560.0"}),
        key(start(), packages=["vllm-2"]),
        key(start(), configuration="d"),
    ]
    assert len(set(keys)) == len(keys)


def test_the_key_stays_for_another_port_device_and_minor_driver() -> None:
    other = replace(GPU, uuid=GpuId("g2"), index=1)
    order = replace(start(), port=20_009, gpus=(GpuHold(GpuId("g2")),), job_id=JobId("chat-2"))
    assert key(order, other, drivers={"nvidia": "550.7"}) == key(start())


@pytest.fixture
def store(tmp_path: Path) -> ArtefactStore:
    made = ArtefactStore(tmp_path / "artefacts", 10_000)
    made.load()
    return made


def compiled(tmp_path: Path, size: int = 1_000) -> str:
    folder = tmp_path / f"compiled-{size}"
    (folder / "triton").mkdir(parents=True, exist_ok=True)
    (folder / "triton" / "kernel").write_bytes(b"k" * size)
    return str(folder)


def saved(
    store: ArtefactStore, source: str, model: str = "chat", ready_ms: int = 5_000, key: str = KEY
) -> tuple[Artefact | None, list[Artefact]]:
    return store.save("default", model, key, source, (), ready_ms)


def lend(store: ArtefactStore, target: Path, content: str = "", key: str = KEY) -> bool:
    target.mkdir(exist_ok=True)
    return store.lend("default", "chat", key, content, target)


def test_what_was_stored_is_lent_as_a_copy_also_by_the_next_agent(
    store: ArtefactStore, tmp_path: Path
) -> None:
    made, _ = saved(store, compiled(tmp_path))
    assert made is not None
    again = ArtefactStore(store.root, store.bytes_max)
    again.load()
    assert lend(again, tmp_path / "job", made.content)
    assert (tmp_path / "job" / "triton" / "kernel").read_bytes() == b"k" * 1_000
    assert not lend(again, tmp_path / "other", made.content, key="another")


def test_the_start_time_that_it_saves_is_measured(store: ArtefactStore, tmp_path: Path) -> None:
    saved(store, compiled(tmp_path), ready_ms=5_000)
    made, _ = saved(store, compiled(tmp_path), ready_ms=1_000)
    assert made is not None and (made.cold_ms, made.warm_ms, made.saves_ms) == (5_000, 1_000, 4_000)
    made, _ = saved(store, compiled(tmp_path), ready_ms=3_000, key="new flags")
    assert made is not None and (made.cold_ms, made.warm_ms) == (3_000, 0)


def test_a_changed_file_is_refused_and_leaves_the_store(
    store: ArtefactStore, tmp_path: Path
) -> None:
    saved(store, compiled(tmp_path))
    (file,) = store.root.glob("*/files/triton/kernel")
    file.write_bytes(b"k" * 999 + b"x")
    with pytest.raises(Differs, match="triton/kernel has the SHA-256"):
        lend(store, tmp_path / "job")
    assert list((tmp_path / "job").iterdir()) == []
    assert store.known == {} and list(store.root.iterdir()) == []


def test_a_missing_file_and_a_list_that_the_log_does_not_have_are_refused(
    store: ArtefactStore, tmp_path: Path
) -> None:
    saved(store, compiled(tmp_path))
    next(store.root.glob("*/files/triton/kernel")).unlink()
    with pytest.raises(Differs):
        lend(store, tmp_path / "job")
    saved(store, compiled(tmp_path))
    with pytest.raises(Differs, match="not the recorded one"):
        lend(store, tmp_path / "job", "another")
    saved(store, compiled(tmp_path))
    store.known["default", "chat"].files["more"] = "0" * 64
    with pytest.raises(Differs, match="does not have the recorded SHA-256"):
        lend(store, tmp_path / "job")


def test_what_saves_the_least_time_per_byte_gives_way(store: ArtefactStore, tmp_path: Path) -> None:
    saved(store, compiled(tmp_path, 4_000), "cheap", ready_ms=1_000)
    saved(store, compiled(tmp_path, 5_000), "dear", ready_ms=90_000)
    made, out = saved(store, compiled(tmp_path, 3_000), "chat", ready_ms=9_000)
    assert made is not None and [each.model for each in out] == ["cheap"]
    assert sorted(model for _, model in store.known) == ["chat", "dear"]


def test_what_is_worth_less_than_the_others_or_too_large_is_not_stored(
    store: ArtefactStore, tmp_path: Path
) -> None:
    saved(store, compiled(tmp_path, 9_000), "dear", ready_ms=90_000)
    assert saved(store, compiled(tmp_path, 3_000), ready_ms=1_000) == (None, [])
    assert saved(store, compiled(tmp_path, 10_001), ready_ms=1 << 30) == (None, [])
    (tmp_path / "empty").mkdir()
    assert saved(store, str(tmp_path / "empty")) == (None, [])
    assert [model for _, model in store.known] == ["dear"]


def test_what_cannot_be_read_is_removed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "artefacts" / "broken").mkdir(parents=True)
    store = ArtefactStore(tmp_path / "artefacts", 1)
    store.load()
    assert list(store.root.iterdir()) == []
