"""Intents: the changes that users request from the gateway.

Each function checks one request and returns the fact to record, or refuses it with the reason.
Everything here is pure: the state of the cluster and the time are arguments. A module per kind of
request (`job_intents`, `model_intents`, `membership_intents`, ...) holds the functions that the
routes of `http/` call. `*_fields.py` read and check groups of fields that several requests share.

Refusals are `errors.Refused` (422) or `problems.Problem` (403, 404, 409). Every text names the
field, the value and the accepted values.
"""
