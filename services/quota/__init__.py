"""Quota: tenants' budgets, limits, weights and the usage ledger.

Owns: whether a job may wait at all, and what each attempt is charged
Reads: jobs, tenants
Writes: JobAdmitted, JobRejected, UsageCharged, BudgetExhausted, BudgetRenewed,
  QuotaTermBegan
Decides: how many jobs of a tenant may wait; charges and their cost, once per attempt; when a
  budget is used up, and when a month's begins; the parts of a minute's budget
Never: enforces GPUs in use (the scheduler does, at placement)
"""
