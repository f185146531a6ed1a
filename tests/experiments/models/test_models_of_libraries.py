"""A model that no code here knows: named by a user's own YAML, trained as any other."""

import json
from pathlib import Path

import pytest
import torch
from hydra.utils import instantiate
from omegaconf import OmegaConf

from bagua_algos.worker_axis.models import StackedModel
from bagua_algos.worker_axis.stacking import Stacking
from bagua_algos.worker_axis.trial import why_not_stacked
from experiments.models.bert import bert
from tests import app

pytest.importorskip("transformers", reason="the extra text is not installed")

RESNET = """
_target_: experiments.models.logits.Logits
model:
  _target_: transformers.ResNetForImageClassification
  config:
    _target_: transformers.ResNetConfig
    _convert_: all
    num_channels: 1
    embedding_size: 8
    hidden_sizes: [8, 16]
    depths: [1, 1]
    layer_type: basic
    num_labels: 10
"""


def test_stacked_copies_equal_a_loop():
    torch.manual_seed(0)
    net = instantiate(OmegaConf.create(RESNET)).double()
    x_wb = torch.randn(2, 4, 1, 28, 28, dtype=torch.float64)
    assert why_not_stacked(net, x_wb[0]) is None
    rows = StackedModel(net, 2)(x_wb)
    assert rows.shape == (2, 4, 10)
    torch.testing.assert_close(rows, StackedModel(net, 2, stacking=Stacking(way="loop"))(x_wb))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["sim", "gloo"])
def test_two_workers_train_it(backend: str, tmp_path: Path):
    conf = tmp_path / "conf"
    (conf / "model").mkdir(parents=True)
    (conf / "model" / "resnet.yaml").write_text(RESNET)
    ended = app.run(
        *(f"hydra.searchpath=[file://{conf}]", "algo=bytegrad", "model=resnet", "net=none"),
        *("workers=2", "max_steps=30", "eval_every=30", f"backend={backend}"),
        f"hydra.run.dir={tmp_path / 'run'}",
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["model"], summary["status"]) == ("resnet", "completed")
    assert summary["final_accuracy"] > 0.2


def test_pretrained_weights_come_in_training_mode_as_drawn_ones_do(tmp_path: Path):
    drawn = bert(size="tiny", vocabulary=30, dropout=0.5)
    drawn.model.save_pretrained(tmp_path)
    pretrained = bert(weights=str(tmp_path), dropout=0.5)
    for model in (drawn, pretrained):
        assert all(part.training for part in model.modules())
        tokens = torch.ones(2, 7, dtype=torch.long)
        assert not model(input_ids=tokens).equal(model(input_ids=tokens)), "by dropout"
    for ours, theirs in zip(pretrained.parameters(), drawn.parameters(), strict=True):
        assert ours.equal(theirs)
