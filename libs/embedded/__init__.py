"""The embedded cluster: a real nats-server and every service as a child process of one launcher, on
one machine.

Run once (`muster up`), not a service: it decides nothing about jobs. Who may say what is
`permissions.py`, the server's file `nats_config.py`, the children `processes.py`, the verbs
`commands.py`.
"""
