"""The figures beside our own are those of the papers, typed here a second time."""

from typing import Any

import pytest

from coterie.study import check, read, select

AMP = ("mnist", "fmnist", "emnist", "cifar100")
AMP_TABLES = {
    "amp-table1": """
        separate    99.27 81.66 54.41  9.82
        fedavg      99.31 91.94 74.38 49.59
        fedprox     98.81 90.19 73.14 46.50
        fedavg-ft   98.98 90.17 70.53 35.07
        fedprox-ft  98.72 89.02 69.49 40.77
        scaffold    98.89 89.04 72.51 43.06
        apfl        98.93 91.03 73.95 49.02
        fedamp      99.22 92.05 74.07 45.68
        heurfedamp  99.28 91.80 74.07 45.88""",
    "amp-table2": """
        separate    98.73 97.67 99.15 92.67
        fedavg      98.39 77.88 19.44  2.70
        fedprox     97.15 83.80 48.81  2.81
        fedavg-ft   99.66 98.07 99.24 95.00
        fedprox-ft  99.63 98.00 99.27 94.36
        scaffold    99.34 94.58 98.75  2.04
        apfl        98.24 97.44 98.90 52.11
        fedamp      99.53 97.95 99.27 94.87
        heurfedamp  99.38 98.17 99.26 94.74""",
    "amp-table3": """
        separate    86.30 86.73 61.78 39.99
        fedavg      81.82 79.50 72.27 35.21
        fedprox     81.46 78.71 70.55 37.31
        fedavg-ft   91.79 89.73 78.93 49.00
        fedprox-ft  94.10 87.51 77.31 50.24
        scaffold    98.50 40.20 77.98 21.29
        apfl        85.05 84.08 59.07 16.45
        fedamp      97.59 90.97 81.22 53.04
        heurfedamp  97.36 91.37 81.47 53.27""",
}


def columns(table: str, cells: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """A table of the paper as a dictionary of cells of figures by method."""
    rows = {line.split()[0]: line.split()[1:] for line in table.strip().splitlines()}
    assert all(len(figures) == len(cells) for figures in rows.values())
    return {cell: {method: float(row[i]) for method, row in rows.items()} for i, cell in enumerate(cells)}


def of(name: str, key: str = "published") -> dict[str, dict[str, float]]:
    """The same of a study."""
    table = read(name)
    return {cell: getattr(check(select(table, cell)), key) for cell in table["cells"]}


@pytest.mark.parametrize("name", AMP_TABLES)
def test_the_figures_of_fedamps_tables(name: str) -> None:
    assert of(name) == columns(AMP_TABLES[name], AMP)


# σ of FedAMP as the preprint prints it (ours is twice that), σ of HeurFedAMP, τ; Tables 2 to 4 of its appendix C.
GROUPS = {"mnist": (100, 25, 0.95), "fmnist": (10, 100, 0.95), "emnist": (10, 50, 0.9), "cifar100": (1e6, 10, 0.8)}
AMP_OPTIONS = {
    "amp-table1": {"mnist": (100, 25, 0.99), "fmnist": (100, 50, 0.99), "emnist": (10, 50, 0.984),
                   "cifar100": (1e6, 10, 0.99)},
    "amp-table2": {"mnist": (100, 25, 0.5), "fmnist": (10, 100, 0.5), "emnist": (10, 50, 0.5),
                   "cifar100": (1e6, 10, 0.5)},
    **dict.fromkeys(("amp-table3", "amp-dirty", "amp-dropped", "amp-figure2", "amp-figure3"), GROUPS),
}  # fmt: skip


@pytest.mark.parametrize("name", AMP_OPTIONS)
def test_the_hyper_parameters_of_fedamps_studies(name: str) -> None:
    for cell in read(name)["cells"]:
        study = check(select(read(name), cell))
        sigma, heuristic, tau = AMP_OPTIONS[name][cell.partition("-")[0]]
        amp: Any = study.methods["fedamp"]
        heur: Any = study.methods["heurfedamp"]
        assert (amp.sigma, amp.tau, heur.sigma, heur.tau) == (2 * sigma, tau, heuristic, tau)
        for method in (amp, heur):
            assert [method.beta.at(k) for k in (0, 29, 30, 99)] == pytest.approx([1e4, 1e4, 1e3, 10])
        train = study.training
        assert (train.optimizer, train.lr, train.batch_size, train.local_epochs) == ("adam", 1e-3, 100, 10)
        assert train.rounds == 100
        assert study.model["name"] == ("resnet18" if cell.startswith("cifar100") else "cnn")


@pytest.mark.parametrize("cell", read("amp-dirty")["cells"])
def test_two_of_five_silos_have_so_many_dirty_labels(cell: str) -> None:
    data = check(select(read("amp-dirty"), cell)).data
    assert (data["dirty"], data["dirty_labels"]) == (0.4, int(cell.rpartition("-")[2]) / 100)


@pytest.mark.parametrize("cell", read("amp-dropped")["cells"])
def test_so_many_silos_miss_a_round(cell: str) -> None:
    study = check(select(read("amp-dropped"), cell))
    assert study.training.drop == int(cell.rpartition("-")[2]) / 100 and study.data["dirty"] == 0
