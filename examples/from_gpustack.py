#!/usr/bin/env python3
"""Print a `muster deploy` command for each model of a GPUStack server; run none of them.

    curl -s -H "Authorization: Bearer $GPUSTACK_KEY" $GPUSTACK_URL/v2/models > models.json
    examples/from_gpustack.py models.json

Written for the fields of GPUStack 2.2 and 2.3. What has no counterpart is printed as a comment.
See docs/howto/come-from-gpustack.md.
"""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

SERVERS = {
    "vLLM": "vllm serve {model}",
    "SGLang": "python3 -m sglang.launch_server --model-path {model}",
}
OTHERS = ("extended_kv_cache", "speculative_config", "cpu_offloading", "gpu_type_selector")


def main() -> None:
    """Print the commands, with what to look at before each."""
    for row in json.loads(Path(sys.argv[1]).read_text())["items"]:
        print("\n".join([*remarks(row), command(row), ""]))


def remarks(row: dict[str, Any]) -> list[str]:
    """Return comments about fields that the command does not carry."""
    found = [f"set up {name} by hand: {row[name]}" for name in OTHERS if row.get(name)]
    if (row.get("scaling_schedule") or {}).get("enabled"):
        found.append("there are no windows by time: --replicas MIN..MAX follows the load")
    found += [f"muster adapter add ... for {each['lora_name']}" for each in row["lora_list"] or []]
    if row["backend"] not in SERVERS:
        found.append(f"put the command of the backend {row['backend']} here")
    return [f"# {row['name']}: {text}" for text in found]


def command(row: dict[str, Any]) -> str:
    """Return the command that serves the same model."""
    model = row["huggingface_repo_id"] or row["model_scope_model_id"] or row["local_path"]
    gpus = (row["gpu_selector"] or {}).get("gpus_per_replica") or 1
    words = ["--replicas", str(row["replicas"]), "--gpus", str(gpus), "--served-name", row["name"]]
    words += [f"--env={name}={value}" for name, value in (row["env"] or {}).items()]
    words += [f"--node-label={name}={value}" for name, value in row["worker_selector"].items()]
    words += ["--spread", "none"] if row["placement_strategy"] == "binpack" else []
    server = SERVERS.get(row["backend"], "COMMAND {model}").format(model=model).split()
    words += ["--", *server, "--host", "{host}", "--port", "{port}"]
    return f"muster deploy {row['name']} {shlex.join([*words, *(row['backend_parameters'] or [])])}"


if __name__ == "__main__":
    main()
