"""Lightning's Trainer by local SGD: torchrun --nproc-per-node 2 examples/lightning_trainer.py"""

import os

import pytorch_lightning as pl
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import bagua_algos
from bagua_algos.trainers.lightning import RelaxedStrategy


class Digits(pl.LightningModule):
    """A small CNN on images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten()
        )
        self.head = nn.Linear(512, 10)

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:
        """The mean loss of a batch."""
        images, labels = batch
        return nn.functional.cross_entropy(self.head(self.net(images)), labels)

    def validation_step(self, batch: list[Tensor], index: int) -> None:
        """Log the share of images that are recognised, of all workers'."""
        images, labels = batch
        is_right = self.head(self.net(images)).argmax(1) == labels
        self.log("accuracy", is_right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam, on every worker."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
digits = TensorDataset(x.float().view(-1, 1, 8, 8) / 16, y)
train, test = torch.utils.data.random_split(digits, [1437, 360], torch.Generator().manual_seed(0))

pl.seed_everything(0)
module = Digits()
trainer = pl.Trainer(
    strategy=RelaxedStrategy(bagua_algos.LocalSGD(interval=8)),
    accelerator="cpu",
    devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
    max_epochs=4,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(module, DataLoader(train, 32, shuffle=True), DataLoader(test, 180))
accuracy = trainer.callback_metrics["accuracy"]  # of the workers' consensus
checksum = sum(p.sum() for p in module.parameters())
print(f"worker {trainer.global_rank}: accuracy {accuracy:.3f}, weights {checksum:.6f}")
