"""FSDP2 whose replicas meet every 8 steps only: torchrun --nproc-per-node 4 examples/fsdp2.py"""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import bagua_algos

dist.init_process_group("gloo")
# Two replicas of two shards: processes 0 and 1 hold one replica, processes 2 and 3 the other.
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
replica, shard = mesh.get_coordinate() or (0, 0)
torch.manual_seed(0)

teacher = torch.linspace(-1, 1, 20)  # what is to be learnt
layers = [nn.Sequential(nn.Linear(n, 64), nn.LayerNorm(64), nn.GELU()) for n in (20, 64, 64)]
model = nn.Sequential(*layers, nn.Linear(64, 1))
for unit in [*layers, model]:
    fully_shard(unit, mesh=mesh["shard"])
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
replicas = bagua_algos.ProcessGroupCommunicator(mesh["replicate"].get_group())
bagua_algos.distribute(model, optimizer, bagua_algos.LocalSGD(interval=8), replicas)

torch.manual_seed(dist.get_rank())
for _ in range(100):
    x = torch.randn(32, 20)
    loss = nn.functional.mse_loss(model(x).squeeze(1), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()

torch.manual_seed(1)
with bagua_algos.consensus(model), torch.no_grad():
    x = torch.randn(1000, 20)
    error = nn.functional.mse_loss(model(x).squeeze(1), x @ teacher)
print(f"replica {replica}, shard {shard}: error {error:.4f}")
dist.destroy_process_group()
