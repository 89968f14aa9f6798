"""Events for other systems: CloudEvents, the stream AUDIT, files."""
