"""What runs inside a user's process: devices, memory pools and transport; users import it as
`muster`.

It imports nothing of `libs.common` and of `services`: a user's program needs no part of the
cluster.
"""
