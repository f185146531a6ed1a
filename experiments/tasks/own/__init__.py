"""Tasks over data that a user brings: any torch Dataset, and files of common formats."""
