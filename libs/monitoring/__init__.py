"""The board for Grafana and the alerts for Prometheus; `setup/` installs them."""
