"""What every example keeps: it is short, in the table, complete, and its commands exist."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.commands import blocks, muster_lines, refusal
from tests.tidy import ROOT

EXAMPLES: Final = ROOT / "examples"
TABLE: Final = (EXAMPLES / "README.md").read_text()
LINES_BELOW: Final = 60
# Programs that examples start, and a complete consumer: no examples to read in a minute.
LONGER: Final = ("model_server.py", "openai_answers.py", "resident_engine.py", "audit_consumer.py")
FILES: Final = sorted(
    path.name for path in EXAMPLES.iterdir() if path.suffix in (".py", ".sh") and path.is_file()
)


@pytest.mark.parametrize("name", [each for each in FILES if each not in LONGER])
def test_an_example_is_shorter_than_a_page(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < LINES_BELOW


@pytest.mark.parametrize("name", FILES)
def test_an_example_is_in_the_table(name: str) -> None:
    assert f"({name})" in TABLE


@pytest.mark.parametrize("name", sorted({*FILES} - {*LONGER, "sweep.py"}))
def test_an_example_says_how_to_run_it(name: str) -> None:
    head = "\n".join((EXAMPLES / name).read_text().splitlines()[:12])
    assert re.search(rf"^#?     ?.*{name}", head, re.MULTILINE), (
        "show the command in its first lines"
    )


@pytest.mark.parametrize("name", [each for each in FILES if each.endswith(".sh")])
def test_a_script_is_one_that_the_shell_reads(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    assert text.startswith("#!/bin/sh\n# ") and "\nset -eu\n" in text
    subprocess.run(["sh", "-n", EXAMPLES / name], check=True)
    assert muster_lines(text)


def _commands() -> list[tuple[str, list[str]]]:
    scripts = {name: (EXAMPLES / name).read_text() for name in FILES if name.endswith(".sh")}
    for name in FILES:
        if name.endswith(".py"):
            about = ast.get_docstring(ast.parse((EXAMPLES / name).read_text())) or ""
            indented = re.findall(r"^    (.*)$", about, re.MULTILINE)
            scripts[name] = "\n".join(indented)
    scripts["README.md"] = "\n".join(block.script for block in blocks(TABLE))
    return [(name, words) for name, text in scripts.items() for words in muster_lines(text)]


@pytest.mark.parametrize(("name", "words"), _commands())
def test_a_command_of_an_example_is_one_of_muster(name: str, words: list[str]) -> None:
    assert refusal(words) == "", f"{name}: muster {' '.join(words)}"


def test_a_command_that_does_not_exist_is_refused() -> None:
    """The checks above would be empty otherwise."""
    assert "no verb" in refusal(["sumbit", "--", "true"])
    assert "gpuz" in refusal(["submit", "--gpuz", "1", "--", "true"])
    lines = muster_lines(
        'JOB=$(muster submit --gpus 1 -- true)\nA=b muster wait "$JOB" >x\n# muster'
    )
    assert lines == [["submit", "--gpus", "1", "--", "true"], ["wait", "1"]]


def test_the_files_that_the_table_names_exist() -> None:
    named = re.findall(r"\]\(([a-z_./]+)\)", TABLE)
    assert [each for each in named if not (EXAMPLES / Path(each)).exists()] == []


def test_models_of_gpustack_become_deployments(tmp_path: Path) -> None:
    """The fields are those that GPUStack 2.3 answers with."""
    row = {
        "name": "qwen3",
        "replicas": 2,
        "source": "huggingface",
        "huggingface_repo_id": "Qwen/Qwen3-8B",
        "model_scope_model_id": None,
        "local_path": None,
        "backend": "vLLM",
        "backend_parameters": ["--max-model-len=8192"],
        "env": {"HF_HUB_OFFLINE": "1"},
        "worker_selector": {"zone": "a b"},
        "gpu_selector": {"gpus_per_replica": 4},
        "placement_strategy": "binpack",
        "lora_list": None,
        "scaling_schedule": {"enabled": True, "baseline_replicas": 1},
    }
    other = row | {"name": "ocr", "backend": "Custom", "gpu_selector": None, "cpu_offloading": True}
    (tmp_path / "models.json").write_text(json.dumps({"items": [row, other]}))
    line = [sys.executable, EXAMPLES / "from_gpustack.py", tmp_path / "models.json"]
    said = subprocess.run(line, capture_output=True, text=True, check=True).stdout
    assert "# qwen3: there are no windows" in said and "# ocr: set up cpu_offloading" in said
    first, second = muster_lines(said)
    assert refusal(first) == refusal(second) == ""
    assert first[:3] == ["deploy", "qwen3", "--replicas"] and "--gpus" in first
    assert first[-3:] == ["--port", "{port}", "--max-model-len=8192"]
    assert "--node-label=zone=a b" in first and "COMMAND" in second
