"""REST: one router per kind of thing, the edge in front of them, and the OpenAPI document.

`intents/` checks requests, `views/` makes what is shown.
"""
