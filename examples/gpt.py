"""A small GPT on the manual of Python: torchrun --nproc-per-node 2 examples/gpt.py [ALGORITHM]

ALGORITHM is a name in `bagua_algos` (ByteGrad, LocalSGD, QAdam, ...), ByteGrad where none is given.
The text is what `help()` shows of Python's topics, character by character.
"""

import sys
from pydoc_data.topics import topics

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

import bagua_algos

CONTEXT, WIDTH, NUM_HEADS, NUM_LAYERS, BATCH, STEPS = 64, 96, 4, 3, 16, 100


class Block(nn.Module):
    """Attention to what came before, then a perceptron, each added to its normalised input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """`x[batch, time, width]` -> the same shape."""
        parts = self.qkv(self.norm_1(x)).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2) for part in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.mlp(self.norm_2(x))


class GPT(nn.Module):
    """A decoder-only transformer over `vocabulary` characters."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(vocabulary, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*[Block() for _ in range(NUM_LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """`ids[batch, time]` -> logits `[batch, time, vocabulary]` of what follows."""
        x = self.characters(ids) + self.places.weight[: ids.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def read_text() -> tuple[Tensor, Tensor, int]:
    """Training and validation text as numbers, and how many different characters there are."""
    text = "".join(topics.values())
    numbers = {character: number for number, character in enumerate(sorted(set(text)))}
    ids = torch.tensor([numbers[character] for character in text])
    return ids[: len(ids) * 9 // 10], ids[len(ids) * 9 // 10 :], len(numbers)


def loss_of(model: nn.Module, text: Tensor, batch: int, generator: torch.Generator) -> Tensor:
    """The mean loss in nats a character, on pieces of the text drawn at random."""
    starts = torch.randint(len(text) - CONTEXT, (batch, 1), generator=generator)
    pieces = text[starts + torch.arange(CONTEXT + 1)]
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def main() -> None:
    """Train, and print the loss of the workers' consensus."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    training, validation, vocabulary = read_text()
    torch.manual_seed(0)
    model = GPT(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    algorithm = getattr(bagua_algos, sys.argv[1] if len(sys.argv) > 1 else "ByteGrad")()
    model, optimizer = bagua_algos.distribute(model, optimizer, algorithm)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model, training, BATCH, generator).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    with bagua_algos.consensus(model), torch.no_grad():
        loss = loss_of(model, validation, 256, torch.Generator().manual_seed(0))
        checksum = sum(p.double().sum() for p in model.parameters())
    print(f"worker {rank}: loss {loss:.3f}, weights {checksum:.6f}")
    bagua_algos.release(model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
