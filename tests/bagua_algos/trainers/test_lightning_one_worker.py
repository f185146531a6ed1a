"""Lightning's Trainer with RelaxedStrategy, as one worker finds it in its own process."""

import pytest
from torch.utils.data import DataLoader

from bagua_algos import AllReduce, LocalSGD
from tests.bagua_algos.trainers import plain_loop
from tests.bagua_algos.trainers.plain_loop import Regression, Spare

pl = pytest.importorskip("pytorch_lightning", reason="the extra lightning is not installed")

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own


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


class Ending(pl.plugins.TorchCheckpointIO):
    """Knows whether the trainer has ended it, which one that saves later waits for."""

    has_ended = False

    def teardown(self):
        self.has_ended = True


@pytest.fixture
def fit(launched):
    """Trains a module for an epoch."""
    from bagua_algos.trainers.lightning import RelaxedStrategy

    def fit(module, *, algorithm=LOCAL_SGD, callbacks=(), plugins=(), **options):
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
        ).fit(module, DataLoader(plain_loop.examples(0), plain_loop.BATCH_SIZE))

    return fit


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_a_layer_that_nobody_uses_has_a_gradient_of_zero_unless_such_are_looked_for(fit, options):
    module = Module(Spare())
    fit(module, algorithm=AllReduce(), **options)
    gradient = module.gradients["spare.weight"]
    assert gradient is None if options else gradient.eq(0).all()


def test_a_checkpoint_may_come_before_the_first_validation(fit, tmp_path):
    saved = tmp_path / "first.ckpt"
    fit(Module(at_first=lambda trainer: trainer.save_checkpoint(saved)))
    assert [path.name for path in (tmp_path / "first.ckpt.workers").iterdir()] == ["0.pt"]


def test_a_checkpoint_goes_with_the_workers_parts_when_the_next_one_comes(fit, tmp_path):
    saving = pl.callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=2)
    fit(Module(), callbacks=[saving])
    assert {path.name for path in tmp_path.iterdir()} == {"step=6.ckpt", "step=6.ckpt.workers"}


def test_what_saves_checkpoints_ends_with_training(fit):
    saving = Ending()
    fit(Module(), plugins=[saving])
    assert saving.has_ended
