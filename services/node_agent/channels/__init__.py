"""Channels into running jobs: terminals, forwarded ports and input."""
