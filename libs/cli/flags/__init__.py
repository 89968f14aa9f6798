"""The flags that describe a job or a model, and the types of their values."""
