"""Robust averages against NumPy in float64, and that they keep a rogue upload out of the mean."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from oracle import Oracle, close

from coterie.conformance import CHECKS, Ground, ground_of
from coterie.methods import METHODS, make
from coterie.methods.parts.attention import BLOCK
from coterie.methods.wrappers.robust import clipped, krum, median

AVERAGING = {
    "fedper", "lg-fedavg", "fedrep", "fedbabu", "fedbn", "fedrod", "knn-per", "fedsa-lora", "ffa-lora",
    "fedavg", "fedprox", "fedavg-local", "fedavg-ft", "fedprox-ft", "scaffold", "apfl", "ditto", "perfedavg", "pfedme",
    "fedem", "mr-mtl", "fedala",
}  # fmt: skip


def numpy_clipped(w: np.ndarray) -> np.ndarray:
    centre = np.median(w, axis=0)
    lengths = np.linalg.norm(w - centre, axis=1)
    return np.stack(
        [centre + (row - centre) * min(1, np.median(lengths) / n) for row, n in zip(w, lengths, strict=True)]
    )


def numpy_krum(w: np.ndarray, f: int, keep: int | None = None) -> np.ndarray:
    n = len(w)
    scores = [
        np.sort([np.sum((a - b) ** 2) for j, b in enumerate(w) if j != i])[: n - f - 2].sum() for i, a in enumerate(w)
    ]
    return w[np.argsort(scores)[: keep or n - f]].mean(0)


@pytest.mark.parametrize("k", [1, 2, 7, 8])
def test_the_median_is_numpys_over_any_number_of_columns(k: int) -> None:
    w = np.random.default_rng(k).normal(size=(k, BLOCK + 3))
    np.testing.assert_array_equal(median(torch.from_numpy(w)).numpy(), np.median(w, axis=0))


@pytest.mark.parametrize("k", [5, 8])
def test_rows_are_drawn_back_to_the_median_distance_from_the_median(k: int) -> None:
    w = np.random.default_rng(k).normal(size=(k, 6)) * np.arange(1, k + 1)[:, None]
    close(clipped(torch.from_numpy(w)).numpy(), numpy_clipped(w))


@pytest.mark.parametrize(("f", "keep"), [(1, None), (2, None), (2, 1), (2, 3)])
def test_krum_keeps_those_that_lie_among_the_others(f: int, keep: int | None) -> None:
    w = np.random.default_rng(f).normal(size=(9, 6))
    w[4] += 50
    close(krum(torch.from_numpy(w), f, keep).numpy(), numpy_krum(w, f, keep))
    assert np.abs(krum(torch.from_numpy(w), f, keep).numpy()).max() < 10


def test_krum_of_fewer_replies_than_it_expects_rogues_is_still_one_of_them() -> None:
    w = torch.tensor([[1.0], [5.0]])
    assert krum(w, 3).item() in (1.0, 5.0) and krum(w[:1], 3).item() == 1.0


RULES = [("median", lambda w: np.tile(np.median(w, axis=0), (3, 1))), ("clipped", numpy_clipped)]


@pytest.mark.parametrize(("rule", "expected"), RULES)
@pytest.mark.parametrize("method", ["fedavg", "fedem", "scaffold"])
def test_a_round_takes_in_the_robust_average(rule: str, expected: Callable, method: str) -> None:
    oracle = Oracle()
    played = oracle.play(make(method, {"robust": {"rule": rule}}), rounds=1)
    up, server = played.ups[0], played.servers
    sizes = np.array([len(oracle.data(silo)[1]) for silo in range(3)])
    if method == "scaffold":  # its server takes plain means
        dw, dc = (expected(oracle.vector(t)).mean(0) for t in (up.dw, up.dc))
        close(oracle.vector(server[1].w), oracle.vector(server[0].w) + dw)
        close(oracle.vector(server[1].c), oracle.vector(server[0].c) + dc)
        return
    rows = oracle.vector(up.w if method == "fedavg" else up.theta)
    mean = np.average(expected(rows.reshape(3, -1)), axis=0, weights=sizes)
    close(oracle.vector(server[1].w if method == "fedavg" else server[1].theta), mean.reshape(rows.shape[1:]))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_do_not_average_refuse(name: str) -> None:
    method = make(name, {"robust": {}})
    engine = ground_of(make(name, {})).engine()
    reason = method.refusal(engine.roster, engine.model)
    assert (reason is None) == (name in AVERAGING), reason


def test_krum_refuses_a_federation_too_small_for_its_rogues() -> None:
    method = make("fedavg", {"robust": {"rule": "krum", "rogue": 2}})
    engine = Ground(method).engine()
    assert "needs 2 f + 3 silos, 7 for f = 2, and there are 4" in (method.refusal(engine.roster, engine.model) or "")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
@pytest.mark.parametrize("options", [{"rule": "median"}, {"rule": "clipped"}, {"rule": "krum", "rogue": 0}], ids=str)
def test_conformance(options: dict[str, object], check: Callable[[Ground], None]) -> None:
    check(Ground(make("scaffold", {"robust": options})))
