"""The main process of a replica with a standby: it runs two engines on the same devices, of which
one serves.

A program of its own, which imports only the standard library and runs as the job's user. The
serving engine holds a lock on a file (flock) through a descriptor that it inherited. When its last
process is gone the lock is free, and this process locks the standby's descriptor: the standby then
holds the lock, and nothing else can. The agent reads the report file and records the promotion. The
standby starts when the serving engine is ready and the agent's file says that its bytes are
granted, and ends when that file is gone. Tests: tests/integration/test_standby.py.
"""

import argparse
import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

LOOK_S = 0.05
PROBE_EVERY_S = 0.25
PROBE_S = 1.0
# A standby that died is started again after 1, 2, 4 ... seconds.
AGAIN_FIRST_S = 1.0
AGAIN_MAX_S = 60.0
# Processes of a dead engine may hold the lock for so long after they were killed.
LOCK_WAIT_S = 5.0
LOCK_LOOK_S = 0.002
STEADY_S = 60.0
SIGNALLED = 128


class Engine:
    """One engine: its process group, its port, and the descriptor of the lock that it inherited."""

    def __init__(self, given: argparse.Namespace, port: int, standby: bool) -> None:
        self.host, self.port = given.host, port
        self.ready = False
        self.ready_ms = 0
        self.began = time.monotonic()
        self.probe_at = self.began
        self.lock = os.open(given.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        env = {
            **os.environ,
            "PORT": str(port),
            "MUSTER_PORT": str(port),
            "MUSTER_STANDBY": str(int(standby)),
        }
        argv = [word.replace("{port}", str(port)) for word in given.command]
        try:
            self.process = subprocess.Popen(
                argv, env=env, pass_fds=(self.lock,), start_new_session=True
            )
        except OSError as error:
            sys.exit(f"the engine {argv[0]} cannot be started: {error.strerror}")

    def probe(self, path: str) -> None:
        """Note whether the engine answers its health path, if it is time to ask."""
        now = time.monotonic()
        if self.ready or now < self.probe_at:
            return
        self.probe_at = now + PROBE_EVERY_S
        with contextlib.suppress(OSError, urllib.error.URLError, ValueError):
            host = f"[{self.host}]" if ":" in self.host else self.host
            key = os.environ.get("MUSTER_REPLICA_KEY")
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            asked = urllib.request.Request(f"http://{host}:{self.port}{path}", headers=headers)
            with urllib.request.urlopen(asked, timeout=PROBE_S) as answer:  # nosec B310
                self.ready = 200 <= answer.status < 300
        if self.ready:
            self.ready_ms = round((time.monotonic() - self.began) * 1_000)

    def signal_all(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)

    def take_lock(self) -> bool:
        """Lock the descriptor that the engine inherited; return whether it has the lock now."""
        until = time.monotonic() + LOCK_WAIT_S
        while True:
            try:
                fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > until:
                    return False
                time.sleep(LOCK_LOOK_S)
            else:
                # From now on the lock lives as long as the engine's own descriptor.
                os.close(self.lock)
                return True


class Runner:
    """The serving engine and the standby."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.stopping = False
        self.standby: Engine | None = None
        self.again_at = 0.0
        self.again_s = AGAIN_FIRST_S
        self.promotions = 0
        self.took_ms = 0
        self.reason = ""
        self.is_ready = False
        self.wake, wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGTERM, self._stop)
        self.active = Engine(given, given.port, standby=False)
        if not self.active.take_lock():
            sys.exit(f"{given.lock} is locked by another replica")
        self._write()

    def _stop(self, number: int, frame: object) -> None:
        self.stopping = True
        self.active.signal_all(signal.SIGTERM)

    def run(self) -> int:
        """Run until the serving engine has ended and no standby can follow; return its code."""
        while True:
            with contextlib.suppress(InterruptedError):
                select.select([self.wake], [], [], LOOK_S)
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake, 4_096)
            code = self.active.process.poll()
            if code is not None and not self._follows(code):
                if self.standby is not None:
                    self.standby.signal_all(signal.SIGKILL)
                return code if code >= 0 else SIGNALLED - code
            self._tend()

    def _follows(self, code: int) -> bool:
        """Promote the standby after the serving engine ended; return whether there was one."""
        died = time.monotonic()
        self.active.signal_all(signal.SIGKILL)
        standby = self.standby
        if self.stopping or standby is None or standby.process.poll() is not None:
            return False
        if not standby.take_lock():
            print("muster: the lock of the engine that died is still held", file=sys.stderr)
            return False
        self.active, self.standby = standby, None
        self.again_at = time.monotonic() + AGAIN_FIRST_S
        self.promotions += 1
        self.took_ms = max(1, round((time.monotonic() - died) * 1_000))
        self.reason = f"signal {-code}" if code < 0 else f"exit code {code}"
        self.is_ready = False
        self._write()
        print(f"muster: the standby serves on port {standby.port}", file=sys.stderr, flush=True)
        return True

    def _tend(self) -> None:
        """Start, probe and end the standby."""
        self.active.probe(self.given.health_path)
        wanted = not self.stopping and os.path.exists(self.given.wanted)
        if self.standby is not None:
            code = self.standby.process.poll()
            if code is not None or not wanted:
                self._end_standby(self.standby, code)
                self.standby = None
            else:
                self.standby.probe(self.given.health_path)
        elif wanted and self.active.ready and time.monotonic() >= self.again_at:
            first, second = self.given.port, self.given.standby_port
            self.standby = Engine(self.given, second if self.active.port == first else first, True)
        ready = self.standby is not None and self.standby.ready
        if ready != self.is_ready:
            self.is_ready = ready
            self._write()

    def _end_standby(self, standby: Engine, code: int | None) -> None:
        standby.signal_all(signal.SIGKILL)
        standby.process.wait()
        os.close(standby.lock)
        if time.monotonic() - standby.began > STEADY_S:
            self.again_s = AGAIN_FIRST_S
        self.again_at = time.monotonic() + (self.again_s if code is not None else 0.0)
        self.again_s = min(AGAIN_MAX_S, 2 * self.again_s)

    def _write(self) -> None:
        """Replace the report, which the agent reads at any moment."""
        report = {
            "number": self.promotions,
            "took_ms": self.took_ms,
            "reason": self.reason,
            "ready": self.is_ready,
            "ready_ms": self.standby.ready_ms if self.standby is not None else 0,
        }
        draft = f"{self.given.report}.draft"
        with open(draft, "w", encoding="utf-8") as stream:
            json.dump(report, stream)
        os.replace(draft, self.given.report)


def main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("--health-path", "--host", "--lock", "--report", "--wanted"):
        parser.add_argument(name, required=True)
    for name in ("--port", "--standby-port"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("command", nargs="+")
    sys.exit(Runner(parser.parse_args()).run())


if __name__ == "__main__":
    main()
