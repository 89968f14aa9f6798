"""The proof of a wait: what rules each node out, who goes first, what would start the job, and when
it may start by itself.
"""
