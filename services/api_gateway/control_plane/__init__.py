"""What a gateway knows of the control plane: members of services, the log, certificates.

Owns: nothing that is stored; it is heard on the bus, or read from the servers and from files
"""
