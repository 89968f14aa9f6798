"""The parts of the cluster's state that the folds build."""
