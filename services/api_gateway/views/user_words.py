"""The name of a user in a line of the history. Pure."""


def user_named(name: str) -> str:
    return name or "an unknown user"
