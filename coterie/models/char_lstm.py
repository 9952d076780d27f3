"""The stacked LSTM of McMahan et al. (2017) that predicts the next character, as FedEM uses it on Shakespeare.

PyTorch's own LSTM runs one model at a time. This one is made of linear layers, so that the models of many silos run
at once; weights and results are those of `nn.LSTM`.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.errors import BadInput
from coterie.options import option


@dataclass(frozen=True)
class CharLSTM:
    """Embedding, LSTM layers, one linear layer at the last character."""

    embedding: int = option(8, "numbers a character is embedded in", low=1)
    hidden: int = option(256, "units of an LSTM layer", low=1)
    layers: int = option(2, "LSTM layers", low=1, high=100)


class Layer(nn.Module):
    """One LSTM layer over a sequence of known length."""

    # By which rows know that all steps are one operation
    LSTM_WEIGHTS = ("input.weight", "hidden.weight", "input.bias", "hidden.bias")

    def __init__(self, before: int, hidden: int, steps: int) -> None:
        super().__init__()
        self.steps, self.units = steps, hidden
        self.input = nn.Linear(before, 4 * hidden)  # weight_ih and bias_ih: gates i, f, g, o
        self.hidden = nn.Linear(hidden, 4 * hidden)  # weight_hh and bias_hh
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(hidden**-0.5), hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t, before) -> (b, t, hidden)."""
        driven = self.input(x)  # of all steps at once
        state = memory = torch.zeros_like(driven[:, 0, : self.units])
        states = []
        for step in range(self.steps):
            gates = driven[:, step] + self.hidden(state)
            i, f, g, o = gates.chunk(4, 1)
            memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(memory)
            states.append(state)
        return torch.stack(states, 1)


class CharacterLSTM(nn.Module):
    """Scores of the character after the last."""

    def __init__(self, options: CharLSTM, steps: int, characters: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(characters, options.embedding)
        sizes = [options.embedding] + [options.hidden] * (options.layers - 1)
        self.layers = nn.Sequential(*(Layer(size, options.hidden, steps) for size in sizes))
        self.output = nn.Linear(options.hidden, characters)

    def forward(self, x: Tensor) -> Tensor:
        """x (b, t) characters -> (b, characters)."""
        y: Tensor = self.output(self.layers(self.embedding(x))[:, -1])
        return y


def char_lstm(options: CharLSTM, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The network for sequences of `shape` (characters,), of as many different ones as there are classes."""
    if len(shape) != 1 or outputs < 2:
        raise BadInput(f"[model] char-lstm takes sequences of characters (length,) and predicts the next, not {shape}")
    return CharacterLSTM(options, shape[0], outputs)
