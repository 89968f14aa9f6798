"""A second host in a network namespace of its own: `make netns`, which needs root."""
