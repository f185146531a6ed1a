"""Files that may be a stranger's."""
