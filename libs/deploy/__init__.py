"""Installs, upgrades and checks a cluster on several machines over ssh.

`plan.py` is the configuration, `remote.py` runs commands on machines, `rollout.py` does the work.
`scripts/cluster_deploy.py` is the command. Decision 80 gives the reasons.
"""
