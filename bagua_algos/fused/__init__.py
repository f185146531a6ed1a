"""One step of an optimizer for many parameters at once, over flat storage."""
