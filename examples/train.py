#!/usr/bin/env python3
"""A training loop that saves its work regularly and on a signal, and resumes from there.

    muster submit --preemptible --checkpoint-signal USR1 --checkpoint-grace 60s \\
        -- examples/train.py --checkpoint train.json

Python's standard library only; the "model" is one number that each step improves. In a gang each
step counts once per node, and rank 0 saves. Another attempt may have more nodes or fewer
(--nodes 2..8). See docs/howto/checkpoint.md and docs/howto/elastic-gangs.md.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
ATTEMPT = os.environ.get("MUSTER_ATTEMPT", "1")
told_to_save: list[int] = []


def main() -> None:
    """The loop. A signal is only noted: the work is saved between two steps, when it is whole."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, help="on a disk of all nodes")
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--step-s", type=float, default=0.1, help="how long one step takes")
    parser.add_argument("--save-every", type=int, default=100, help="so many steps")
    asked = parser.parse_args()
    signal.signal(signal.SIGUSR1, lambda number, _frame: told_to_save.append(number))
    saved = asked.checkpoint.read_text() if asked.checkpoint.exists() else '{"step": 0, "model": 1}'
    work = json.loads(saved)
    print(f"attempt {ATTEMPT} goes on from step {work['step']} as {RANK} of {SIZE}", flush=True)
    while work["step"] < asked.steps:
        time.sleep(asked.step_s)
        work = {"step": work["step"] + 1, "model": work["model"] * 0.99**SIZE}
        if RANK == 0 and (told_to_save or work["step"] % asked.save_every == 0):
            save(asked.checkpoint, work)
    print(f"done after {work['step']} steps: {work['model']:.6f}")


def save(path: Path, work: dict[str, float]) -> None:
    """All of it or nothing: written beside, synced, renamed. Only then is it acknowledged."""
    told_to_save.clear()
    beside = path.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(work, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    if acknowledged := os.environ.get("MUSTER_CHECKPOINT_FILE"):
        Path(acknowledged).touch()
    print(f"saved step {work['step']}", flush=True)


if __name__ == "__main__":
    main()
