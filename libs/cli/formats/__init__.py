"""Job files, sbatch scripts and Kubernetes manifests, and the archives of uploads."""
