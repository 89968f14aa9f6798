"""Formats that people bring: job files, sbatch scripts, Kubernetes manifests."""
