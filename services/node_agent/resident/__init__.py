"""Resident data of models on this node: compile products on disk, weight files in memory, and the
engines that stand by (docs/howto/keep-a-model-warm.md).
"""
