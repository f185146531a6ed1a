"""Tools outside of relaxlab that show a run while it lasts: one module each."""
