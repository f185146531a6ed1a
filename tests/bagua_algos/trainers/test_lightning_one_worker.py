"""Lightning's Trainer with RelaxedStrategy, as one worker finds it in its own process."""

from importlib.util import find_spec

import pytest

from bagua_algos import AllReduce
from tests.bagua_algos.trainers.plain_loop import Spare

pytestmark = [
    pytest.mark.skipif(
        find_spec("pytorch_lightning") is None, reason="the extra lightning is not installed"
    ),
    pytest.mark.filterwarnings("ignore"),  # Lightning's own
]


@pytest.fixture
def lightning(launched):
    from tests.bagua_algos.trainers import lightning_one_worker

    return lightning_one_worker


@pytest.mark.parametrize("options", [{}, {"find_unused_parameters": True}])
def test_a_layer_that_nobody_uses_has_a_gradient_of_zero_unless_such_are_looked_for(
    lightning, options
):
    module = lightning.Module(Spare())
    lightning.fit(module, algorithm=AllReduce(), **options)
    gradient = module.gradients["spare.weight"]
    assert gradient is None if options else gradient.eq(0).all()


def test_a_checkpoint_may_come_before_the_first_validation(lightning, tmp_path):
    saved = tmp_path / "first.ckpt"
    lightning.fit(lightning.Module(at_first=lambda trainer: trainer.save_checkpoint(saved)))
    assert [path.name for path in (tmp_path / "first.ckpt.workers").iterdir()] == ["0.pt"]


def test_a_checkpoint_goes_with_the_workers_parts_when_the_next_one_comes(lightning, tmp_path):
    saving = lightning.saving_every_second_step(tmp_path)
    lightning.fit(lightning.Module(), callbacks=[saving])
    assert {path.name for path in tmp_path.iterdir()} == {"step=6.ckpt", "step=6.ckpt.workers"}


def test_a_part_of_which_a_byte_is_another_one_is_refused(lightning, tmp_path):
    saved = tmp_path / "first.ckpt"
    lightning.fit(lightning.Module(at_first=lambda trainer: trainer.save_checkpoint(saved)))
    part = tmp_path / "first.ckpt.workers" / "0.pt"
    content = bytearray(part.read_bytes())
    content[-(-(content.index(b"data/0") + 10) // 64) * 64] ^= 1  # where its numbers begin
    part.write_bytes(content)
    with pytest.raises(ValueError, match=r"0\.pt is no worker's part of a checkpoint, or is damag"):
        lightning.fit(lightning.Module(), resume=saved)


def test_what_saves_checkpoints_ends_with_training(lightning):
    saving = lightning.Ending()
    lightning.fit(lightning.Module(), plugins=[saving])
    assert saving.has_ended
