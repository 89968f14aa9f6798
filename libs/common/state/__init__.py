"""The parts of the cluster's state that the folds change, and views of it."""
