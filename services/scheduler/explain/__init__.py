"""The explanation of a wait: what rules each node out, which jobs go first, which changes would
start the job, and when it may start by itself.
"""
