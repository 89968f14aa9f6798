"""Authentication and authorisation: keys, roles, access records, and bounds per tenant."""
