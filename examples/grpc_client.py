#!/usr/bin/env python3
"""Run a program on the cluster over gRPC: submit it with its input, follow it, read its result.

    pip install 'muster-gpu[grpc]'
    examples/grpc_client.py 127.0.0.1:9090

The key is that of MUSTER_API_KEY or of your profile. See docs/grpc.md.
"""

import argparse
import tempfile
from pathlib import Path

import muster

PROGRAM = """
import json, sys
numbers = json.load(open(sys.argv[1]))["numbers"]
print("adding", len(numbers), "numbers", flush=True)
json.dump({"sum": sum(numbers)}, open("sum.json", "w"))
"""


def main() -> None:
    """Submit a program that adds numbers, and print what it wrote."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address", help="host:port of the gateway's gRPC")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, muster.ClusterClient(asked.address) as client:
        program = Path(folder) / "add.py"
        program.write_text(PROGRAM)
        job = client.submit_job(
            model_path=program,
            input_data={"numbers": list(range(100))},
            gpu_requirements={"count": 1, "memory_gb": 1},
            time_limit="5m",
        )
        for _stream, piece in job.follow():
            print(piece.decode(), end="")
        job.wait(check=True)
        print(job.state, "on", ", ".join(job.node_ids), job.file("sum.json").decode())
        nodes = client.call("Nodes/ListNodes", {"limit": 5}).nodes
        print("nodes:", ", ".join(f"{node.id} {node.state}" for node in nodes))


if __name__ == "__main__":
    main()
