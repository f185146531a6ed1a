"""What a command is told: its options; and what it prints by rich."""
