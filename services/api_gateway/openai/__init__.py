"""The OpenAI surface: raw ASGI endpoints in front of the other routes, one HTTP client session to
the replicas.

A request passes `app.py` (which endpoint), `request.py` (what it asks), `metering.py` (may it),
`queues.py` (when, and which replica), and `call.py`, which relays the answer. No request needs the
log: what is read is the gateway's fold, so an election of the stream or a dead scheduler stops
none.
"""
