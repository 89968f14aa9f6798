"""Build a release and try it: `make release` (docs/howto/release.md).

Owns the files of a release: sdist, wheel, bill of materials, licences, result of the audit, sums.
It is no part of the wheel, and no service imports it.
"""
