"""Program of tests/gpu/test_trace.py: trains a small network on the GPU until it is ended."""

import torch

WIDTH = 2_048


def main() -> None:
    """Train, and say so after the first step."""
    network = torch.nn.Sequential(
        torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU(), torch.nn.Linear(WIDTH, WIDTH)
    ).cuda()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    inputs = torch.randn(1_024, WIDTH).cuda()
    said = False
    while True:
        loss = (network(inputs) - inputs).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        torch.cuda.synchronize()
        if not said:
            print("trains", flush=True)
            said = True


main()
