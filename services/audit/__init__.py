"""The audit service: keeps every commit of the log as exact bytes, in SQL, under one hash chain.

Owns: the chain and the archive; the streams AUDIT and AUDIT_HEADS
Reads: all commits
Writes: no facts; chained records (SQL first, the stream AUDIT after), signed heads of the chain
Decides: the next link, a pure function of (sequence, subject, stored bytes, index, previous hash)
Never: changes anything else
"""
