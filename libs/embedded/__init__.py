"""The embedded cluster of `muster up`: a nats-server and all services on one machine.

The launcher starts them as child processes and decides nothing about jobs. `commands.py` has the
verbs, `processes.py` the child processes, `nats_config.py` the server's configuration, and
`permissions.py` the subjects that each process may use.
"""
