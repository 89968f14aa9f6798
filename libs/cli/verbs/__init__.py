"""The verbs, one file each. A file defines `command` and is imported only when its verb runs."""
