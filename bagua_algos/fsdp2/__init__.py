"""Models that FSDP2 shards: a replica is several processes, and each of them trains its shards."""
