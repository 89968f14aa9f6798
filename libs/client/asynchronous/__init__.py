"""The two clients have the same files: `synchronous/` is generated from `asynchronous/`."""
