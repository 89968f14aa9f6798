"""Job supervisors: a warm zygote forks one small process per job, which outlives the agent and
enforces the lease by itself.

Standard library only on the supervisors' side (`zygote`, `supervisor` and what they import);
`supervisors` is the agent's side.
"""
