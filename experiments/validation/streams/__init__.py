"""What several streams save, and how a message is shared out among them."""
