"""Every built-in model: as many parameters as its paper, over rows at once as one by one."""

import pytest
import torch

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.models import MODELS, build

IMAGE, COLOUR = (1, 28, 28), (3, 32, 32)
SMALL = {  # of every model one that is quick to run
    "linear": ({}, (1, 8, 8)),
    "mlp": ({}, (1, 8, 8)),
    "cnn": ({"channels": [4, 6], "hidden": 12}, (1, 12, 12)),
    "cnn-em": ({"channels": [4, 6], "hidden": 12}, (1, 20, 20)),
    "cnn-apple": ({"hidden": 12}, (1, 20, 20)),
    "resnet18": ({"width": 8}, (3, 8, 8)),
    "mobilenet_v2": ({"width": 0.25}, (3, 16, 16)),
    "char-lstm": ({"hidden": 12}, (9,)),
    "transformer": ({"width": 8, "heads": 2, "layers": 1}, (9,)),
}


def made(name, shape, outputs, **options):
    return build({"name": name, **options}, shape, outputs)[0]


def count(name, shape, outputs, **options):
    return sum(p.numel() for p in made(name, shape, outputs, **options)().parameters())


@pytest.mark.parametrize(
    ("name", "shape", "outputs", "expected"),
    [
        ("cnn", IMAGE, 10, 1_663_370),  # McMahan et al. 2017, section 3
        ("cnn-em", IMAGE, 62, 832 + 51_264 + (64 * 4 * 4 + 1) * 2048 + 2049 * 62),
        ("cnn-apple", IMAGE, 10, 431_080),  # the LeNet of 20 and 50 channels and 500 units
        ("resnet18", COLOUR, 10, 11_173_962),
        ("mobilenet_v2", COLOUR, 1000, 3_504_872),  # torchvision's
        ("mobilenet_v2", COLOUR, 10, 2_236_682),
        ("char-lstm", (80,), 100, 825_220),  # FedEM's: embedding 8, two layers of 256, 100 characters
        ("linear", IMAGE, 10, 7_850),
        ("mlp", IMAGE, 10, 101_770),
    ],
)
def test_parameters_are_those_of_the_paper(name, shape, outputs, expected):
    assert count(name, shape, outputs) == expected


def test_every_model_is_tested_here():
    assert SMALL.keys() == MODELS.keys()


def batches(shape, rows=3, size=4, outputs=5):
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        x = torch.randint(0, outputs, (rows, size, *shape), generator=generator)
    else:
        x = torch.rand(rows, size, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, outputs, (rows, size), generator=generator)


@pytest.mark.parametrize("name", MODELS)
def test_all_rows_at_once_are_each_row_by_itself(name):
    options, shape = SMALL[name]
    model = Model(made(name, shape, 5, **options), 5, dtype=torch.float64)
    x, y = batches(shape)
    model.probe(x[0])
    rows, share = model.starts(0, ["a", "b", "c"], common=False), torch.full(y.shape, 0.25, dtype=torch.float64)
    grads, values, _ = model.gradient(rows, x, y, share)
    assert model.way == "rewritten" and not model.draws
    for i in range(3):
        module = model.module_of(rows[i]).train().requires_grad_()
        loss = torch.nn.functional.cross_entropy(module(x[i]), y[i])
        loss.backward()
        torch.testing.assert_close(values[i], loss.detach())
        for column, parameter in zip(model.layout.parameters, module.parameters(), strict=True):
            own = grads[i, column.start : column.start + column.size]
            torch.testing.assert_close(own, parameter.grad.flatten(), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize("name", MODELS)
def test_the_table_is_written_back(name):
    table = build({"name": name}, (), 0)[1]
    assert build(table, (), 0)[1] == table


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("cnn", (64,), "takes images"),
        ("cnn", (1, 3, 3), "pools twice"),
        ("cnn-em", (1, 12, 12), "pools twice"),
        ("cnn-apple", (1, 15, 28), "pools twice"),
        ("mobilenet_v2", (3, 4, 4), "at least 8×8"),
        ("mobilenet_v2", (80,), "takes images"),
        ("char-lstm", (1, 28, 28), "takes sequences of characters"),
    ],
)
def test_samples_that_do_not_fit_are_refused(name, shape, said):
    with pytest.raises(BadInput, match=said):
        made(name, shape, 10)()


def test_the_smallest_images_that_fit_do():
    assert made("cnn-em", (1, 16, 16), 10)()(torch.zeros(2, 1, 16, 16)).shape == (2, 10)
    assert made("cnn", (1, 4, 4), 10)()(torch.zeros(2, 1, 4, 4)).shape == (2, 10)
