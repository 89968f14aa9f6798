"""Two PyTorch processes of a gang on each node, which sum numbers over gloo until they are stopped.

The environment is that of a Muster job: RANK and WORLD_SIZE count its nodes.
"""

import os
import subprocess
import sys

PER_NODE = 2


def rank(seconds: float) -> None:
    """Be one rank."""
    import time

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    numbers = torch.ones(4_096)
    matrix = torch.randn(64, 64)
    end_s = time.monotonic() + seconds
    going = torch.ones(1)
    dist.barrier()
    print("trains", flush=True)
    while going.item() > 0:
        for _ in range(20):
            matrix = torch.tanh(matrix @ matrix * 0.01)
        dist.barrier()
        dist.all_reduce(numbers)
        numbers /= dist.get_world_size()
        going = torch.tensor([float(time.monotonic() < end_s)])
        dist.all_reduce(going, op=dist.ReduceOp.MIN)
        time.sleep(0.01)
    dist.destroy_process_group()


def main() -> None:
    """Start the processes of this node and wait for them."""
    node, nodes = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "rank", sys.argv[1]],
            env={
                **os.environ,
                "RANK": str(node * PER_NODE + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(nodes * PER_NODE),
            },
        )
        for local in range(PER_NODE)
    ]
    sys.exit(max(child.wait() for child in children))


if __name__ == "__main__":
    if sys.argv[1] == "rank":
        rank(float(sys.argv[2]))
    else:
        main()
