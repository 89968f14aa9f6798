#!/usr/bin/env python3
"""A training loop that can be preempted: it saves its work regularly and on a signal, and resumes
from there.

It needs only Python's standard library. The "model" is one number that each step improves. Copy the
structure:

    muster submit --preemptible --checkpoint-signal USR1 --checkpoint-grace 60s \\
        -- examples/train.py --checkpoint train.json

In a gang each step counts once per node, and rank 0 saves. Another attempt may have more nodes or
fewer (--nodes 2..8).

See docs/howto/checkpoint.md and docs/howto/elastic-gangs.md.
"""

import argparse
import json
import os
import signal
import time
from pathlib import Path

told_to_save = False
rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def main() -> None:
    """The loop."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        help="where the work is saved; on a disk that all nodes see",
    )
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--step-s", type=float, default=0.1, help="how long one step takes")
    parser.add_argument("--save-every", type=int, default=100, help="so many steps")
    asked = parser.parse_args()
    signal.signal(signal.SIGUSR1, note)
    work = load(asked.checkpoint)
    print(
        (
            f"attempt {os.environ.get('MUSTER_ATTEMPT', '1')} goes on from step {work['step']} "
            f"as {rank} of {size}"
        ),
        flush=True,
    )
    while work["step"] < asked.steps:
        work = train(work, asked.step_s)
        if rank == 0 and (told_to_save or work["step"] % asked.save_every == 0):
            save(asked.checkpoint, work)
    print(f"done after {work['step']} steps: {work['model']:.6f}")


def note(number: int, frame: object) -> None:
    """A handler only notes: the work is saved between two steps, when it is whole."""
    global told_to_save
    told_to_save = True


def load(path: Path) -> dict[str, float]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {"step": 0, "model": 1.0}


def train(work: dict[str, float], step_s: float) -> dict[str, float]:
    time.sleep(step_s)
    return {"step": int(work["step"]) + 1, "model": work["model"] * 0.99**size}


def save(path: Path, work: dict[str, float]) -> None:
    """All of it or nothing: written beside, synced, renamed. Only then is it said."""
    global told_to_save
    beside = path.with_suffix(".new")
    with beside.open("w") as file:
        json.dump(work, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    said = os.environ.get("MUSTER_CHECKPOINT_FILE")
    if said:
        Path(said).touch()
    told_to_save = False
    print(f"saved step {work['step']}", flush=True)


if __name__ == "__main__":
    main()
