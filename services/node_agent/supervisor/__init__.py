"""The supervisor process: it runs one attempt, keeps its output and records its end."""
