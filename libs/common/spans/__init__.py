"""Spans of OpenTelemetry: who follows a job or a request, and how spans reach a collector.

`trace_context.py` and `job_spans.py` are pure: the trace of a job is a field of its facts and
orders, and the ids of its spans are derived from it. `recording.py` keeps spans in a bounded queue,
`exporting.py` sends them from a thread of its own. Without a collector nothing is recorded.
Reference: docs/spans.md.
"""
