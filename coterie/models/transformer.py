"""A small transformer (Vaswani et al., 2017) that predicts the next character, in layers that an adapter can name."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class Transformer:
    """Embedding, blocks of attention and two linear layers, one linear layer at the last character."""

    width: int = option(128, "numbers a character is embedded in", low=1)
    heads: int = option(4, "of attention; they share the width", low=1)
    layers: int = option(4, "blocks", low=1, high=1000)

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"{self.heads} heads cannot share a width of {self.width}; take a divisor")


class AttentionBlock(nn.Module):
    """Attention and two linear layers, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, width) -> (b, t, width); every step sees all before it."""
        h = self.norm1(x)
        q, k, v = (
            layer(h).unflatten(2, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (b, heads, t, width / heads)
        x = x + self.project(seen.transpose(1, 2).flatten(2))
        y: Tensor = x + self.narrow(F.gelu(self.widen(self.norm2(x))))
        return y


class CharacterTransformer(nn.Module):
    """Scores of the character after the last."""

    def __init__(self, options: Transformer, steps: int, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, options.width)
        self.position = nn.Parameter(0.02 * torch.randn(steps, options.width))
        self.blocks = nn.Sequential(*(AttentionBlock(options.width, options.heads) for _ in range(options.layers)))
        self.norm, self.output = nn.LayerNorm(options.width), nn.Linear(options.width, characters)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t) characters -> (b, characters)."""
        y: Tensor = self.output(self.norm(self.blocks(self.embedding(x) + self.position)[:, -1]))
        return y


def transformer(options: Transformer, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for sequences of `shape` (characters,), of as many different ones as there are classes."""
    if len(shape) != 1 or outputs < 2:
        raise BadInput(f"[model] transformer takes sequences of characters (length,), not {shape}")
    return CharacterTransformer(options, shape[0], outputs)
