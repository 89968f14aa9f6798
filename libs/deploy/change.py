"""The version and the files of one machine, and the record of a change that has not ended.

The link PREFIX/current names the version in use. PREFIX/changing exists from before the first
change of a machine until the machine is healthy after a restart, and holds the version to go back
to. So an interrupted command is noticed by the next one, which restarts the machine. Tests:
tests/integration/test_rollout.py.
"""

from typing import Final

from libs.deploy.remote import Machine, quoted

PRIVATE: Final = "600"
PUBLIC: Final = "644"


def place(prefix: str, version: str) -> str:
    """Return the folder of a version."""
    return f"{prefix}/versions/{version}"


def current(machine: Machine, prefix: str) -> str:
    """Return the version in use; empty if there is none."""
    _, out, _ = machine.tried(f"readlink {quoted(prefix)}/current")
    return out.strip().rpartition("/")[2]


def switch(machine: Machine, prefix: str, version: str) -> None:
    """Let the link name another version, at once."""
    link = quoted(f"{prefix}/current")
    machine.run(f"ln -sfn {quoted(place(prefix, version))} {link}.next && mv -T {link}.next {link}")


def unfinished(machine: Machine, prefix: str) -> str | None:
    """Return the version before a change that has not ended; None if there is no such change."""
    code, out, _ = machine.tried(f"cat {_record(prefix)}")
    return None if code else out.strip()


def begin(machine: Machine, prefix: str) -> str:
    """Record that a change begins. Return the version to go back to; empty if there is none.

    The record of an interrupted change stays: its version is the last one that was healthy.
    """
    before = unfinished(machine, prefix)
    if before is None:
        before = current(machine, prefix)
        put(machine, f"{prefix}/changing", text=before, mode=PUBLIC)
    return before


def end(machine: Machine, prefix: str) -> None:
    """Remove the record: the machine is healthy."""
    machine.run(f"rm -f {_record(prefix)}")


def put(machine: Machine, path: str, text: str, mode: str) -> None:
    """Write a file, completely or not at all. Other users can never read a private one."""
    new, file = quoted(f"{path}.next"), quoted(path)
    machine.run(
        f"umask 077 && cat > {new} && chmod {mode} {new} && mv -T {new} {file}", text.encode()
    )


def differs(machine: Machine, path: str, text: str) -> bool:
    """Return whether a file is missing or has another content."""
    code, kept, _ = machine.tried(f"cat {quoted(path)}")
    return bool(code) or kept != text


def _record(prefix: str) -> str:
    return quoted(f"{prefix}/changing")
