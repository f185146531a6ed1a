"""Optimizers beside the distributed one."""

import sys
from collections import OrderedDict

import pytest

from bagua_algos import LocalSGD, TopK
from bagua_algos.engine.script import other_optimizers
from tests.bagua_algos.engine.script.test_attached import backward
from tests.bagua_algos.engine.script.test_changes import sgd
from tests.bagua_algos.engine.test_engine import engine_of, layers


def test_every_optimizer_is_heard_of_before_its_step_and_after_it(monkeypatch):
    """As by the first model that a process distributes."""
    other_optimizers._hook_all_optimizers()  # those of this process stay as they are
    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(sys.modules["torch.optim.optimizer"], hooks, OrderedDict())
    other_optimizers._hook_all_optimizers.cache_clear()
    model = layers(3, 4)
    engine, _ = engine_of(model, TopK(ratio=0.1))
    for _ in range(2):  # what another optimizer has used is not thrown away
        backward(model)
        sgd(*model.parameters()).step()
        model.zero_grad()
    engine.close()
    engine, _ = engine_of(model, LocalSGD())
    with pytest.raises(ValueError, match=r"another optimizer is about to change"):
        sgd(*model.parameters()).step()
    engine.close()
