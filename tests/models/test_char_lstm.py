import pytest
import torch
from torch import nn

from coterie.engine.kernels.lowered import lower
from coterie.engine.layout import Layout
from coterie.models import build


class Theirs(nn.Module):
    """The FedEM authors' model with PyTorch's own LSTM, read at the last character."""

    def __init__(self, characters, embedding, hidden, layers):
        super().__init__()
        self.encoder = nn.Embedding(characters, embedding)
        self.rnn = nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.decoder = nn.Linear(hidden, characters)

    def forward(self, x):
        return self.decoder(self.rnn(self.encoder(x))[0])[:, -1]


def filled(theirs, ours):
    """Our weights as theirs."""
    own = ours.state_dict()
    theirs.encoder.weight.data = own["embedding.weight"]
    theirs.decoder.weight.data, theirs.decoder.bias.data = own["output.weight"], own["output.bias"]
    for layer in range(theirs.rnn.num_layers):
        for kind, name in (("ih", "input"), ("hh", "hidden")):
            for part in ("weight", "bias"):
                getattr(theirs.rnn, f"{part}_{kind}_l{layer}").data = own[f"layers.{layer}.{name}.{part}"]
    return theirs


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_it_says_what_pytorchs_lstm_says(layers):
    torch.manual_seed(0)
    ours = build({"name": "char-lstm", "hidden": 7, "embedding": 3, "layers": layers}, (11,), 20)[0]().double()
    theirs = filled(Theirs(20, 3, 7, layers).double(), ours)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    x = torch.randint(0, 20, (5, 11))
    torch.testing.assert_close(ours(x), theirs(x))
    ours(x).square().sum().backward()
    theirs(x).square().sum().backward()
    torch.testing.assert_close(ours.layers[0].hidden.weight.grad, theirs.rnn.weight_hh_l0.grad)
    torch.testing.assert_close(ours.embedding.weight.grad, theirs.encoder.weight.grad)


def test_it_starts_as_pytorchs_lstm_does():
    torch.manual_seed(0)
    layer = build({"name": "char-lstm"}, (80,), 100)[0]().layers[0]
    for weights in (layer.input.weight, layer.hidden.weight, layer.input.bias, layer.hidden.bias):
        assert weights.abs().max() <= 1 / 16  # 1 / √256
        assert weights.std().item() == pytest.approx(1 / 16 / 3**0.5, rel=0.05)


def test_every_character_counts():
    torch.manual_seed(0)
    model = build({"name": "char-lstm", "hidden": 16}, (12,), 20)[0]()
    x = torch.randint(0, 20, (1, 12))
    for place in range(12):
        other = x.clone()
        other[0, place] = (other[0, place] + 1) % 20
        assert not torch.equal(model(x), model(other))


def test_its_steps_are_one_operation_so_it_is_short_enough_to_be_compiled():
    for name, shape, long in (
        ("char-lstm", (80,), False),
        ("mobilenet_v2", (3, 32, 32), True),
        ("resnet18", (3, 32, 32), False),
    ):
        module = build({"name": name}, shape, 20)[0]()
        written = lower(module, Layout(module).names)
        assert written is not None and written.long == long
