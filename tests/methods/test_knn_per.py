"""kNN-Per: FedAvg's model mixed with the nearest neighbours among a silo's own samples."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from method_cases import conform
from oracle import CLASSES, close
from plain import make_engine
from torch import Tensor, nn
from two_layers import COHORTS, HIDDEN, TwoLayers

from coterie.conformance import Ground, ground_of
from coterie.data.silo import Part
from coterie.engine.method import Cohort, Method
from coterie.engine.neighbours import Neighbours
from coterie.engine.predictors import read, restored
from coterie.errors import BadInput
from coterie.methods import make
from coterie.methods.fedavg import FedAvg
from coterie.methods.knn_per import KNNPer


@conform(
    "knn-per", {"weight": 0.4, "neighbours": [2], "scale": 0.1}, {"neighbours": [1, 3], "compress": {"top_k": 0.3}}
)
def test_conformance(method: Method, check: Callable[[Ground], None]) -> None:
    check(ground_of(method))


def deployed(oracle: TwoLayers, method: Method, played: object) -> Neighbours:
    engine = played.engine  # type: ignore[attr-defined]
    everyone = Cohort.everyone(engine.roster, engine.model, len(COHORTS) - 1)
    found = engine.personal(everyone, method.send(played.servers[-1], everyone))  # type: ignore[attr-defined]
    assert isinstance(found, Neighbours)
    return found


def votes(oracle: TwoLayers, silo: int, w: np.ndarray, x: np.ndarray, count: int, scale: float) -> np.ndarray:
    """p(y | x) ∝ Σ over the nearest of exp(−‖z − z'‖² / (σ dim z)) where their class is y."""
    own, y = oracle.data(silo)
    keys, made = oracle.features(w, own), []
    for z in oracle.features(w, x):
        apart = ((z - keys) ** 2).sum(1)
        near = np.argsort(apart)[:count]
        kernel = np.exp(-apart[near] / (scale * HIDDEN))
        made.append(np.array([kernel[y[near] == k].sum() for k in range(CLASSES)]) / kernel.sum())
    return np.stack(made)


@pytest.mark.parametrize("scale", [1.0, 0.05])
def test_rounds_of_fedavg_and_then_the_best_mixture_on_validation_data(scale: float) -> None:
    oracle, counts = TwoLayers(), (4, 1, 9)
    method = KNNPer(neighbours=counts, scale=scale)
    played = oracle.play_cohorts(method)
    w = oracle.start()
    for r, ids in enumerate(COHORTS):
        w = oracle.mean([oracle.descend(i, w, r) for i in ids], ids)
    close(oracle.vector(played.servers[-1].w), w)
    found = deployed(oracle, method, played)
    x = np.random.default_rng(5).normal(size=(6, 4))
    predicted = found.predict(played.engine.model, torch.from_numpy(x).expand(3, -1, -1))
    for i in range(3):
        seen, truth = oracle.data(i, "validation")
        best, chosen = np.inf, (0, 0.0)
        for count in counts:
            near = votes(oracle, i, w, seen, count, scale)
            for lam in np.arange(11) / 10:
                mixed = lam * near + (1 - lam) * oracle.probabilities(w, seen)
                loss = -np.log(np.maximum(mixed[np.arange(len(truth)), truth], 1e-30)).sum()
                if loss < best - 1e-12:
                    best, chosen = loss, (count, lam)
        count, lam = chosen
        assert int(found.neighbours[i]) == count
        close(found.weight[i], lam)
        expected = lam * votes(oracle, i, w, x, count, scale) + (1 - lam) * oracle.probabilities(w, x)
        close(predicted[i], expected)


def test_without_the_neighbours_it_is_fedavg() -> None:
    oracle = TwoLayers()
    method = KNNPer(weight=0.0)
    played = oracle.play_cohorts(method)
    theirs = oracle.play_cohorts(FedAvg())
    assert torch.equal(played.servers[-1].w, theirs.servers[-1].w)
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    task = played.engine.task(torch.arange(3), 3)
    everyone = Cohort.everyone(theirs.engine.roster, theirs.engine.model, 3)
    plain = theirs.engine.personal(everyone, theirs.engine.method.send(theirs.servers[-1], everyone))
    torch.testing.assert_close(task.predict(deployed(oracle, method, played), x), task.predict(plain, x))


def test_one_neighbour_alone_knows_the_training_samples_by_heart() -> None:
    oracle = TwoLayers()
    method = KNNPer(weight=1.0, neighbours=(1,))
    played = oracle.play_cohorts(method)
    found = deployed(oracle, method, played)
    for i in range(3):
        x, y = oracle.data(i)
        one = found.take(torch.tensor([i])).predict(played.engine.model, torch.from_numpy(x)[None])[0]
        assert (one.argmax(1).numpy() == y).all()


def test_a_silo_without_validation_data_takes_half() -> None:
    oracle = TwoLayers()
    silo = oracle.silos[0]
    oracle.silos[0] = replace(silo, validation=Part(silo.validation.x[:0], silo.validation.y[:0]))
    method = KNNPer(neighbours=(3, 1))
    found = deployed(oracle, method, oracle.play_cohorts(method))
    assert (float(found.weight[0]), int(found.neighbours[0])) == (0.5, 3)


def test_a_file_carries_the_samples_and_predicts_the_same() -> None:
    oracle = TwoLayers()
    method = KNNPer()
    played = oracle.play_cohorts(method)
    model, found = played.engine.model, deployed(oracle, method, played)
    again = restored(found.form, found.tensors())
    x = torch.randn(5, 4, dtype=torch.float64)
    expected = found.predict(model, x.expand(3, -1, -1))
    torch.testing.assert_close(again.predict(model, x.expand(3, -1, -1)), expected)
    for row, size in enumerate((11, 7, 6)):
        written = found.written(model, row)
        assert written["keys"].shape == (size, HIDDEN)  # its own samples, and none to fill up

        def build(tensors: dict[str, Tensor]) -> nn.Module:
            made = nn.Sequential(nn.Linear(4, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, CLASSES)).double()
            made.load_state_dict(tensors)
            return made

        module = read(found.form, dict(written), build, CLASSES)
        torch.testing.assert_close(module(x), expected[row])
        with pytest.raises(BadInput, match="not name a layer"):
            read(found.form, {**written, "head": torch.tensor([57], dtype=torch.uint8)}, build, CLASSES)
        with pytest.raises(BadInput, match="samples are not those"):
            read(found.form, {**written, "labels": written["labels"] + CLASSES}, build, CLASSES)


def test_what_it_cannot_do_is_refused() -> None:
    engine = make_engine(lambda: nn.Linear(5, 1), classes=0, probe=False)
    assert "are numbers" in str(KNNPer().refusal(engine.roster, engine.model))
    engine = make_engine(lambda: nn.Sequential(nn.Unflatten(1, (5, 1)), nn.Conv1d(5, 3, 1), nn.Flatten()), probe=False)
    assert "one vector" in str(KNNPer().refusal(engine.roster, engine.model))
    with pytest.raises(BadInput, match="at least one number"):
        make("knn-per", {"neighbours": []})


def test_a_saved_model_is_read_back(tmp_path: Path) -> None:
    from coterie.personal.export import save_models
    from coterie.personal.file import load_model

    engine = make_engine(lambda: nn.Linear(5, 3), method=KNNPer(), dtype=torch.float32)
    server = engine.method.open(engine.roster, engine.model)
    everyone = Cohort.everyone(engine.roster, engine.model, 0)
    found = engine.personal(everyone, engine.method.send(server, everyone))
    about = {"model": {"name": "linear"}, "shape": [5], "outputs": 3}
    silos = list(engine.roster.names)
    save_models(tmp_path, engine.model, found, silos, about)
    assert {path.stem for path in tmp_path.iterdir()} == set(silos)
    model = load_model(tmp_path / f"{silos[0]}.safetensors", model=lambda shape, outputs: nn.Linear(5, 3))
    x = torch.randn(4, 5)
    expected = engine.task(everyone.ids, 0).predict(found, x.expand(3, -1, -1))[0]
    np.testing.assert_allclose(model.predict_proba(x.numpy()), expected.numpy(), atol=1e-6)
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "model.onnx"
    model.to_onnx(file)
    session = runtime.InferenceSession(file)
    found = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_a_checkpoint_knows_numbers_of_silos_that_are_the_same_for_all() -> None:
    from coterie.runs.checkpoint import _one_for_all

    assert _one_for_all(torch.ones(3))
    assert not _one_for_all(torch.tensor([1.0, 2.0]))
    assert _one_for_all(torch.ones(3, 2, 2, dtype=torch.float64))
