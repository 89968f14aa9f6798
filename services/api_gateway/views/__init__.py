"""Views: the gateway's projections of the cluster's state for people and tools.

They decide nothing.
"""
