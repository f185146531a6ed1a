"""What the commands of all packages share."""
