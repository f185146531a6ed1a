#!/bin/sh
# One replica of two processes, in the namespace that `netsim serve` starts it in.
exec python -m torch.distributed.run --nnodes="$WORLD_SIZE" --node-rank="$RANK" --nproc-per-node=2 \
    --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" -m tests.bagua_algos.fsdp2.measure
