"""What all services share: facts, state, messages, transport and settings."""
