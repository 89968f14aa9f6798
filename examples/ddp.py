#!/usr/bin/env python3
"""Train a small model data-parallel with PyTorch, one rank on each node.

    muster run --nodes 2 --gpus 1 --upload examples -- python3 ddp.py

Muster sets RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, which PyTorch reads by itself. The
backend is gloo, so it runs without GPUs; with `BACKEND=nccl` each rank uses its GPU.
"""

import os
import sys

try:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
except ImportError:
    sys.exit("ddp.py needs PyTorch on the nodes: pip install torch")

BACKEND = os.environ.get("BACKEND", "gloo")
STEPS = 100


def main() -> None:
    """Fit y = 3x + 1 on data that differs between the ranks."""
    dist.init_process_group(BACKEND)
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda:0" if BACKEND == "nccl" else "cpu")
    torch.manual_seed(rank)  # each rank draws its own data
    model = DistributedDataParallel(torch.nn.Linear(1, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        x = torch.rand(64, 1, device=device)
        loss = torch.nn.functional.mse_loss(model(x), 3 * x + 1)
        optimizer.zero_grad()
        loss.backward()  # averages the gradients over all ranks
        optimizer.step()
    weight = model.module.weight.detach().reshape(1)
    weights = [torch.empty_like(weight) for _ in range(size)]
    dist.all_gather(weights, weight)
    same = all(torch.equal(each, weight) for each in weights)
    print(f"rank {rank} of {size}: loss {loss.item():.4f}, all ranks have one model: {same}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
