"""Models of the library transformers among those that map a tensor to a tensor."""

from torch import Tensor, nn


class Logits(nn.Module):
    """The `logits` of what `model` returns, as transformers' models do: an object of many fields.

        _target_: transformers.ResNetForImageClassification
        config:
          _target_: transformers.ResNetConfig
          _convert_: all    # lists are to be Python's
          num_channels: 1
          num_labels: 10

    in a model's YAML becomes one by itself.

    Args:
        model: takes a tensor as its first argument.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        """What `model` takes -> logits [b, ..., c]."""
        return self.model(x).logits
