"""The audit service: every commit of the log, kept for ever as exact bytes under one hash chain, in SQL.

Owns: the chain and the archive; the streams AUDIT and AUDIT_HEADS
Reads: all commits
Writes: no facts; chained records (SQL first, the stream AUDIT after), signed heads of the chain
Decides: the next link, a pure function of (sequence, subject, stored bytes, index, previous hash)
Never: changes anything else
"""
