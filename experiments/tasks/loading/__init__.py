"""How examples get from a split to a step."""
