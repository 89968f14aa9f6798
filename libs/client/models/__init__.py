"""The answers of a gateway, generated from its description."""
