"""How this machine becomes a node of a cluster that runs elsewhere: `muster join`.

Run once, not a service.

The exchange with the gateway is `exchange.py`, what is kept and how the agent is started
`agent.py`.
"""
