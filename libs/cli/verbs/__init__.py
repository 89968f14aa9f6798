"""One file per verb. Each holds `command`, and is imported only when its verb is used."""
