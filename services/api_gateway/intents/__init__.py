"""Requests of users: each is checked and becomes a fact, or is refused with the reason."""
