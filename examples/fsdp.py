#!/usr/bin/env python3
"""Train a model that is sharded over the ranks (PyTorch FSDP), one rank on each node.

    muster run --nodes 2 --gpus 1 --upload examples -- python3 fsdp.py

No rank holds the whole model: parameters, gradients and the optimizer's state are divided. The
backend is gloo, so it runs without GPUs; with `BACKEND=nccl` each rank uses its GPU.
"""

import os
import sys

try:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
except ImportError:
    sys.exit("fsdp.py needs PyTorch 2.6 or newer on the nodes: pip install torch")

KIND = "cuda" if os.environ.get("BACKEND", "gloo") == "nccl" else "cpu"
WIDTH = 256
STEPS = 20


def main() -> None:
    """Train a network of three layers to copy its input, each layer sharded by itself."""
    dist.init_process_group("nccl" if KIND == "cuda" else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same model on each rank, before it is sharded
    layers = [torch.nn.Linear(WIDTH, WIDTH) for _ in range(3)]
    model = torch.nn.Sequential(*layers).to(KIND)
    whole = sum(each.numel() for each in model.parameters())
    mesh = init_device_mesh(KIND, (size,))
    for layer in layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)
    torch.manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(32, WIDTH, device=KIND)
        loss = torch.nn.functional.mse_loss(model(x), x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    held = sum(each.to_local().numel() for each in model.parameters())
    print(
        f"rank {rank} of {size}: holds {held} of {whole} parameters, loss {losses[0]:.3f} "
        f"-> {losses[-1]:.3f}"
    )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
