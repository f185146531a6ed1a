"""Training scripts as strangers write them, on two real workers."""
