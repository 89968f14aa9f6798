"""The traced program of `bench/trace.py`: steps of a small model in PyTorch, on request.

Each line of standard input is a processor time in milliseconds. The answer is the steps that it
took and the processor time that the whole process used, in nanoseconds.
"""

import sys
import time

import torch

torch.set_num_threads(1)
model = torch.nn.Sequential(
    torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 512), torch.nn.ReLU()
)
rows = torch.randn(256, 512)


def step() -> None:
    """Do one step of training."""
    loss = model(rows).square().mean()
    loss.backward()
    for parameter in model.parameters():
        parameter.grad = None


def main() -> None:
    """Answer requests until the input ends."""
    for _ in range(20):
        step()
    print("ready", flush=True)
    for line in sys.stdin:
        until_ns = int(line) * 1_000_000
        begun_ns, steps = time.process_time_ns(), 0
        while time.process_time_ns() - begun_ns < until_ns:
            step()
            steps += 1
        print(steps, time.process_time_ns() - begun_ns, flush=True)


main()
