import pytest
import torch
from safetensors.torch import save_file

from coterie.errors import BadInput
from coterie.models import build


def made(outputs=10, shape=(3, 32, 32), **options):
    torch.manual_seed(0)
    return build({"name": "mobilenet_v2", **options}, shape, outputs)[0]()


@pytest.mark.parametrize(("strides", "side"), [("small", 4), ("imagenet", 1)])
def test_how_much_of_an_image_is_left(strides, side):
    model = made(strides=strides, width=0.25)
    assert model.features(torch.zeros(2, 3, 32, 32)).shape == (2, 1280, side, side)
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_names_and_shapes_are_torchvisions():
    tensors = {name: tuple(t.shape) for name, t in made(1000).state_dict().items()}
    assert len(tensors) == 314
    assert tensors["features.0.0.weight"] == (32, 3, 3, 3)
    assert tensors["features.1.conv.0.0.weight"] == (32, 1, 3, 3)
    assert tensors["features.1.conv.1.weight"] == (16, 32, 1, 1)
    assert tensors["features.2.conv.0.0.weight"] == (96, 16, 1, 1)
    assert tensors["features.17.conv.2.weight"] == (320, 960, 1, 1)
    assert tensors["features.17.conv.3.running_var"] == (320,)
    assert tensors["features.18.1.bias"] == (1280,)
    assert tensors["classifier.1.weight"] == (1000, 1280)


def test_the_multiplier_makes_multiples_of_eight():
    wide = {name: t.shape[0] for name, t in made(width=0.5).state_dict().items() if name.endswith("0.0.weight")}
    assert wide["features.0.0.weight"] == 16
    assert all(count % 8 == 0 for count in wide.values())
    assert sum(p.numel() for p in made(1000, width=1.4).parameters()) == 6_108_776  # MobileNetV2 1.4


def test_blocks_have_a_way_around_where_the_shape_stays():
    assert [b.around for b in made().features[1:18]] == [
        False, False, True, False, True, True, False, True, True, True, False, True, True, False, True, True, False,
    ]  # fmt: skip
    block = made().features[3]
    torch.nn.init.zeros_(block.conv[3].weight)
    x = torch.rand(1, 24, 8, 8)
    assert torch.equal(block(x), x)


def saved(path, outputs, **changes):
    tensors = {name: t.clone() for name, t in made(outputs, width=0.25).state_dict().items()}
    tensors = {name: torch.full_like(t, 0.5) if t.is_floating_point() else t for name, t in tensors.items()}
    for name, tensor in changes.items():
        tensors.pop(name) if tensor is None else tensors.update({name: tensor})
    save_file(tensors, path)
    return str(path)


def test_it_can_start_from_weights_of_other_classes(tmp_path):
    model = made(10, width=0.25, weights=saved(tmp_path / "w.safetensors", 1000))
    assert all((p == 0.5).all() for name, p in model.named_parameters() if not name.startswith("classifier"))
    assert (model.features[0][1].running_var == 0.5).all()
    assert model.classifier[1].weight.std().item() == pytest.approx(0.01, rel=0.1)


def test_weights_of_the_same_classes_are_taken_whole(tmp_path):
    model = made(10, width=0.25, weights=saved(tmp_path / "w.safetensors", 10))
    assert all((p == 0.5).all() for p in model.parameters())


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features.18.1.bias": None}, r"1 tensors are missing, first features\.18\.1\.bias"),
        ({"features.18.1.bias": torch.zeros(3)}, r"features\.18\.1\.bias is \(3,\), expected \(1280,\)"),
    ],
)
def test_weights_of_another_model_are_refused(tmp_path, changes, said):
    with pytest.raises(BadInput, match=said):
        made(10, width=0.25, weights=saved(tmp_path / "w.safetensors", 10, **changes))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "w.safetensors").write_bytes(b"nothing")
    for name in ("w.safetensors", "none.safetensors"):
        with pytest.raises(BadInput, match=f"weights .*{name}: cannot be read"):
            made(weights=str(tmp_path / name))
