"""The descriptions of the API that are checked in, made from the types of the code itself.

`python -m services.api_gateway.description` writes docs/reference/openapi.json,
docs/api_reference.md, proto/muster/v1/, the descriptors of messages in libs/rpc/, and the client's
models. tests/unit/test_api_description.py fails when one of them differs. A field keeps its number
in proto/muster/v1/numbers.json for ever (decision 72).
"""
