"""The command of scripts/monitoring_setup.py: install the board and the alerts, and check them."""
