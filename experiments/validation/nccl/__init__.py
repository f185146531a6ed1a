"""NCCL over shaped links, by one net plugin or another."""
