"""Your own script, distributed by one line: torchrun --nproc-per-node 4 examples/train.py"""

import torch
import torch.distributed as dist
from torch import nn

import bagua_algos

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(rank)

teacher = torch.linspace(-1, 1, 20)  # what is to be learnt
model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
model, optimizer = bagua_algos.distribute(model, optimizer, bagua_algos.ByteGrad())

for _ in range(200):
    x = torch.randn(32, 20)
    loss = nn.functional.mse_loss(model(x).squeeze(1), x @ teacher)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

with bagua_algos.consensus(model), torch.no_grad():
    x = torch.randn(1000, 20)
    error = nn.functional.mse_loss(model.eval()(x).squeeze(1), x @ teacher)
print(f"worker {rank}: error {error:.4f}, weights {sum(p.sum() for p in model.parameters()):.6f}")
dist.destroy_process_group()
