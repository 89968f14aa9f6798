"""The place in the log that a follower of facts has read.

Pure. The facts of one commit share its sequence, and a connection may break between them. After
that the follower asks for the last commit again and leaves out the facts that it has given. Tests:
tests/unit/test_client_lines.py.
"""


class Sequence:
    """The last commit that was seen, and how many of its facts were given."""

    def __init__(self, after: int) -> None:
        self.last = after
        self.given = 0
        self.skip = 0

    @property
    def after(self) -> int:
        """Return the commit after which the next connection begins."""
        return self.last - 1 if self.given else self.last

    def begin(self) -> None:
        """Begin a connection: it repeats the facts of the last commit."""
        self.skip = self.given

    def is_new(self, seq: int) -> bool:
        """Return whether a fact was not given yet, and count it."""
        if seq == self.last and self.skip:
            self.skip -= 1
            return False
        self.given = self.given + 1 if seq == self.last else 1
        self.last = seq
        self.skip = 0
        return True
