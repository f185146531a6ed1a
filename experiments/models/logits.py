"""Models of the library transformers among those whose output is a tensor."""

import torch
from torch import Tensor, nn


class Logits(nn.Module):
    """The `logits` of what `model` returns, as transformers' models do: an object of many fields.

        _target_: transformers.ResNetForImageClassification
        config:
          _target_: transformers.ResNetConfig
          _convert_: all    # lists are to be Python's
          num_channels: 1
          num_labels: 10

    in a model's YAML becomes one by itself. A model that answers questions, whose logits are two,
    makes both of them: [b, 2, t], of each of t places that the answer begins there, and ends.

    Args:
        model: takes a tensor as its first argument, or several by name.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *x: Tensor, **named: Tensor) -> Tensor:
        """What `model` takes -> logits [b, ..., c]."""
        outputs = self.model(*x, **named)
        if hasattr(outputs, "start_logits"):
            return torch.stack([outputs.start_logits, outputs.end_logits], 1)
        return outputs.logits
