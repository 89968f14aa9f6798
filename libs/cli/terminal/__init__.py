"""Output for people: tables, live screens, notes and error lines."""
