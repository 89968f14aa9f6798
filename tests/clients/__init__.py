"""Clients that other people wrote, and a real model server, against a whole cluster:
`make clients`.
"""
