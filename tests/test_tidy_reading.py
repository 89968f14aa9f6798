"""Each rule of tests/test_tidy.py finds an example that breaks it."""

from pathlib import Path

import pytest

from tests import tidy


@pytest.mark.parametrize(
    "text",
    [
        "for x in {1, 2}: pass",
        "[x for x in set(y)]",
        "def f(a: set[int]) -> None:\n    for x in a: pass",
        "a = {1}\nlist(a)",
        "b = tuple(c.keys() - d)",
        "x = [*{1, 2}]",
        "', '.join({'a'})",
    ],
)
def test_an_iteration_over_a_set_is_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(text)
    assert len(tidy.set_loops(tmp_path / "a.py")) == 1


@pytest.mark.parametrize(
    "text", ["sorted({1})", "3 in {3}", "for x in {1: 2}: pass", "len(set(a)) == 3"]
)
def test_use_of_a_set_without_its_order_is_allowed(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(text)
    assert tidy.set_loops(tmp_path / "a.py") == []


@pytest.mark.parametrize(
    "text",
    [
        "def f():\n    try: pass\n    except asyncio.CancelledError: pass",
        "def f():\n    try: pass\n    except (OSError, CancelledError):\n        if x: raise",
        "def f():\n    with contextlib.suppress(asyncio.CancelledError): pass",
    ],
)
def test_a_swallowed_cancellation_is_found(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(text)
    assert tidy.forgotten_cancellations(tmp_path / "a.py") == ["a.py in f"]


def test_an_equality_of_floats_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tidy, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text("x == 0.5\ny / 2 != z\nx < 0.5\ny // 2 == z\n")
    assert len(tidy.float_equalities(tmp_path / "a.py")) == 2
