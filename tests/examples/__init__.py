"""The programs of examples/, checked (in `make test`) and run (`make examples`)."""
