"""Real workers: processes of this host, or those that torchrun or srun has started."""
