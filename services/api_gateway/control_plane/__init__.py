"""The control plane as a gateway sees it: members of services, the log, certificates.

Owns: nothing that is stored; it is heard on the bus, or read from the servers and from files
"""
