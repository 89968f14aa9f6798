"""The job that is run: `job.py FILE SECONDS FAILURES` writes down that it lives and which GPUs it
has, and exits with 3 in its first FAILURES attempts.

Each line is one write to a file opened for appending, so that the lines of many processes never
mix. Read by `spans.py`, which describes the fields.
"""

import os
import sys
import time

BEAT_S = 0.1


def main(path: str, seconds: float, failures: int) -> int:
    told = os.environ
    job_id, attempt = told["MUSTER_JOB_ID"], int(told["MUSTER_ATTEMPT"])
    place = f"{told['MUSTER_RANK']} {told['MUSTER_NODE_ID']} {told['MUSTER_TENANT']}"
    gpus = told["MUSTER_GPUS"] or "-"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(kind: str) -> None:
        line = f"{kind} {job_id} {attempt} {os.getpid()} {time.monotonic_ns()} {place} {gpus}\n"
        os.write(file, line.encode())

    deadline = time.monotonic() + seconds
    say("start")
    while (left := deadline - time.monotonic()) > 0:
        time.sleep(min(BEAT_S, left))
        say("beat")
    say("end")
    return 3 if attempt <= failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
