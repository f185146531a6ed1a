"""Models that no library has in the size these tasks need."""
