"""The directories of attempts: their uploads, owners, Unix users and retention."""
