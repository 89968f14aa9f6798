"""The agent's side of job supervision: start, watch and find supervisors.

The supervisors' own side is `supervisor/`: small processes that a warm zygote forks, one per job,
which outlive the agent and enforce the lease. They use the standard library only.
"""
