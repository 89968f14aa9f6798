"""Output for people: tables, screens and what a verb prints."""
