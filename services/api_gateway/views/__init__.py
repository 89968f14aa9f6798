"""The gateway's projections of the cluster's state: what people and tools are shown.

None of them decides anything.
"""
