"""The directories of attempts: who owns them, how long they are kept, and their Unix users."""
