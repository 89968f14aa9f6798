"""Preemption: the jobs that may be preempted, what they would lose, and which of them end for the
first waiting job.
"""
