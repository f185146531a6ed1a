"""The border to a script of any kind: what it may do to a distributed model and its optimizer."""
