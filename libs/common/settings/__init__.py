"""The settings of all processes, their sources and their help texts."""
