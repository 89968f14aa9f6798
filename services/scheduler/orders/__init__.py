"""What acknowledged facts mean for each node: orders and its desired state."""
