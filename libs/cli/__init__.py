"""The command `muster`: one file per verb in `verbs/`, each imported only when it is used."""
