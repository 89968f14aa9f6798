"""The benchmark of `muster diagnose`: planted faults in a job of 32 Python ranks."""
