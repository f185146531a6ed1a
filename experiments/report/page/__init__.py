"""The page of a report: one file that needs no other, to be explored in a browser."""
