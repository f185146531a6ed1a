"""A module and a trainer of Lightning for the only worker, in a process that runs tests."""

import pytorch_lightning as pl
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.plugins import TorchCheckpointIO
from torch.utils.data import DataLoader

from bagua_algos import LocalSGD
from bagua_algos.trainers.lightning import RelaxedStrategy
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import Regression

LOCAL_SGD = LocalSGD(interval=2)


class Module(pl.LightningModule):
    """Notes the gradients of its last step; `at_first` is called within its first."""

    def __init__(self, net=None, at_first=lambda trainer: None):
        super().__init__()
        self.net = net or Regression()
        self.at_first = at_first
        self.gradients = {}

    def training_step(self, batch, batch_idx):
        if batch_idx == 0:
            self.at_first(self.trainer)
        return self.net(**batch)["loss"]

    def on_before_optimizer_step(self, optimizer):
        self.gradients = {name: p.grad for name, p in self.net.named_parameters()}

    def configure_optimizers(self):
        return plain_loop.make_sgd(self)


class Ending(TorchCheckpointIO):
    """Knows whether the trainer has ended it, which one that saves later waits for."""

    has_ended = False

    def teardown(self):
        self.has_ended = True


def saving_every_second_step(folder):
    return ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2)


def fit(module, *, algorithm=LOCAL_SGD, callbacks=(), plugins=(), resume=None, **options):
    """Train the module for an epoch, by a strategy of these options."""
    pl.Trainer(
        strategy=RelaxedStrategy(algorithm, **options),
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=bool(callbacks),
        callbacks=list(callbacks),
        plugins=list(plugins),
    ).fit(module, DataLoader(plain_loop.examples(0), plain_loop.BATCH_SIZE), ckpt_path=resume)
