"""Other people's trainers, with an algorithm in place of DistributedDataParallel."""
