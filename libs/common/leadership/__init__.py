"""Choose the process of a service that leads, and let another one take over.

Schedulers, quotas and audits may run more than once. One process of each leads. The others follow
the log, ask it for a sign of life, and begin a term when it is gone (decision 77). The guarantee is
the log's fence (`transport/writer.py`); this folder only chooses the moment well.
"""
