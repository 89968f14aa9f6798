"""The command `muster`.

`verbs/` holds one file per verb, imported only when the verb runs. `flags/` holds the options,
`formats/` the job files, `following/` the connections to a running job, `terminal/` the output.
"""
