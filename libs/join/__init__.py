"""`muster join`: this machine becomes a node of a cluster on other machines.

`exchange.py` talks to the gateway. `agent.py` stores the node's files and starts the agent.
"""
