"""A stand-in of nvidia-cuda-mps-control: real processes, a socket in the pipe directory, the same
commands. test_mps.py makes it a program.

With -f it is the daemon; without, a command on its input goes to the daemon. Servers are children
of the daemon in sessions of their own. A file `faults` beside the program says what it does wrong:
no-start, deaf, ignore-quit, server-stays.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NoReturn

PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
BYTES = 65_536
PR_SET_NAME = 15


def faults() -> list[str]:
    path = Path(sys.argv[0]).parent / "faults"
    return path.read_text().split() if path.exists() else []


def name(text: str) -> None:
    ctypes.CDLL(None).prctl(PR_SET_NAME, text.encode(), 0, 0, 0)


def serve(uid: str) -> int:
    """A server; nothing but a signal ends it."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    name("nvidia-cuda-mps-server")
    os.closerange(3, 64)
    if "server-stays" in faults():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def daemon() -> NoReturn:
    name("nvidia-cuda-mps-control")
    print("An instance of this daemon begins", flush=True)
    if "no-start" in faults():
        print("Failed to find the device", flush=True)
        sys.exit(1)
    os.chdir(PIPES)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("control")
    listening.listen()
    servers: list[int] = []
    while True:
        connection, _ = listening.accept()
        if "deaf" in faults():
            continue
        with connection, contextlib.suppress(OSError):
            command = connection.recv(BYTES).decode().split()
            connection.sendall(answer(command, servers).encode())
        if command == ["quit"] and "ignore-quit" not in faults():
            for pid in servers:
                os.kill(pid, signal.SIGTERM)
            sys.exit(0)


def answer(command: list[str], servers: list[int]) -> str:
    if command == ["get_server_list"]:
        return "\n".join(map(str, servers)) + "\n"
    if command[:1] == ["start_server"]:
        servers.append(serve(command[-1]))
        return f"{servers[-1]}\n"
    if command == ["get_environment"]:
        return json.dumps(dict(os.environ)) + "\n"
    return "\n"


def main() -> None:
    if "-f" in sys.argv:
        daemon()
    try:
        os.chdir(PIPES)
        with socket.socket(socket.AF_UNIX) as asking:
            asking.connect("control")
            asking.sendall(sys.stdin.buffer.readline())
            print(asking.recv(BYTES).decode(), end="")
    except OSError:
        print("Cannot find MPS control daemon process")
        sys.exit(1)


if __name__ == "__main__":
    main()
