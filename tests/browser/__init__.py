"""The dashboard in a real browser (`make browser`)."""
