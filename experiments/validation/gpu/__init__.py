"""What needs a GPU: checks, each a command of its own, and the table of what came of them."""
