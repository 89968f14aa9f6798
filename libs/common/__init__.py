"""The code that all services share: facts, state, messages, transport and settings."""
