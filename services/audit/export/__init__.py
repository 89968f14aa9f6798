"""Export of the archive to other systems: CloudEvents, the stream AUDIT, files."""
