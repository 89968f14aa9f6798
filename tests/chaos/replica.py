"""A replica: `replica.py FILE SERVER ARGUMENTS` writes down that it lives, as `job.py` does, and is
the example server beside that.
"""

import os
import runpy
import sys
import threading
import time

BEAT_S = 0.1


def main(path: str, server: str) -> None:
    job_id, attempt = os.environ["MUSTER_JOB_ID"], int(os.environ["MUSTER_ATTEMPT"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def say(kind: str) -> None:
        os.write(file, f"{kind} {job_id} {attempt} {os.getpid()} {time.monotonic_ns()}\n".encode())

    def beat() -> None:
        while True:
            time.sleep(BEAT_S)
            say("beat")

    say("start")
    threading.Thread(target=beat, daemon=True).start()
    sys.argv = sys.argv[2:]
    # As `python SERVER` would, so that the server finds the modules beside it.
    sys.path.insert(0, os.path.dirname(server))
    runpy.run_path(server, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
