"""The client of gRPC, imported as `muster.ClusterClient`. It imports no HTTP client."""
