"""Models that tests stack."""

from torch import nn


class ByData(nn.Module):
    """Control flow that depends on data, which vmap refuses."""

    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Linear(3, 2), nn.BatchNorm1d(2)

    def forward(self, x_b):
        return self.norm(self.layer(x_b)) * (2 if x_b.sum() > 0 else 1)


class TwoNames(nn.Module):
    """Whose trunk has a name of its own, and one in the whole, which is computed."""

    def __init__(self, num_inputs=3, num_outputs=2):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Flatten(), nn.Linear(num_inputs, 4, bias=False), nn.BatchNorm1d(4)
        )
        self.net = nn.Sequential(self.trunk, nn.Linear(4, num_outputs))

    def forward(self, x_b):
        return self.net(x_b)


def repeated():
    """One block three times."""
    block = nn.Sequential(nn.Linear(3, 3, bias=False), nn.BatchNorm1d(3))
    return nn.Sequential(block, nn.Tanh(), block, nn.Tanh(), block, nn.Linear(3, 2))


def normed():
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
