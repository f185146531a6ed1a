"""What a command is told: its options."""
