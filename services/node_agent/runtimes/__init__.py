"""Containers: jobs with an image, which Docker or Podman runs."""
