"""The dashboard: static files for browsers, served by the gateway.

Owns the pages at `/` and their files; `static/` holds them, without a build step. The pages have no
data: they read /v1 with the session of their user, so that one table of roles decides for all ways
in. Reads nothing but its own files; writes and decides nothing.
"""
