"""Work that forked children do."""
