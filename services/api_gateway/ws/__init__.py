"""GET /v1/ws: a WebSocket with many subscriptions, and requests to models on the same connection.

- `protocol.py`, `filters.py`, `frames.py` and `open_ids.py` are pure: what clients send, what they
  are sent, and how much one connection may have open.
- `topics.py`, `job_output.py`, `counts.py` and `model_request.py` make the frames of each topic.
- `outbox.py` sends them one after another; `client.py` is one connection; `sockets.py` are all
  connections of a gateway.

docs/websocket.md describes the protocol for clients.
"""
