"""Single sign-on with an OpenID Connect provider: for pages by authorization code with PKCE, for
the command line by device codes (RFC 8628).

Owns: the mapping of groups to tenants and roles, the verification of identity tokens, and the
requests to the provider. `http/sign_on.py` has the routes; keys work without the provider.
"""
