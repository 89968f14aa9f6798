"""Words for people: so many of something."""


def counted(number: int, noun: str) -> str:
    """`1 GPU`, `2 GPUs`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
