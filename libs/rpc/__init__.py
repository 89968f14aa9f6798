"""The messages of gRPC as classes, for the gateway and for clients.

`descriptors.binpb` is generated (`make generate`) and is what protoc makes of proto/muster/v1.
Tests: tests/unit/test_rpc_conversion.py.
"""
