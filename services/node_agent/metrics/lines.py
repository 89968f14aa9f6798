"""Lines of Prometheus's text format. Pure. Tests: tests/unit/test_exposition.py."""

from collections.abc import Iterable, Mapping


def family(name: str, meaning: str, kind: str, values: Iterable[tuple[str, float]]) -> list[str]:
    """Return the lines of one metric; none if it has no value."""
    lines = [f"{name}{{{marks}}} {value}" for marks, value in values]
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}", *lines] if lines else []


def labels(pairs: Mapping[str, str]) -> str:
    """Return labels with their values escaped."""
    return ",".join(f'{name}="{_escaped(value)}"' for name, value in pairs.items())


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
