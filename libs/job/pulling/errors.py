"""The errors of a pull. Each text says what failed, on what, and what to do next."""


class PullError(Exception):
    """A pull that cannot go on."""


class Stopped(PullError):
    """A file that was given up because another one failed."""


class Broken(PullError):
    """A request that may succeed when it is sent again."""
