"""Replicas of models: how many, where, and when a retired one may stop."""
