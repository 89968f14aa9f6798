"""The shell of a service process: its loop, tasks, clock, pulse and privacy."""
