"""The figures beside our own are those of the papers, typed here a second time."""

from typing import Any

import pytest

from coterie.studies.study import check, read, select

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


# FedACS: local, Ditto's and Per-FedAvg's personal and global models; by α.
def test_the_figures_of_fedacss_tables() -> None:
    cells = ("cifar10", "fmnist")
    assert of("acs-table1") == columns(
        """
        separate   77.29 75.98
        ditto      77.33 78.79
        perfedavg  73.07 74.07
        fedacs     83.84 84.33""",
        cells,
    )
    assert of("acs-table1", "published_cloud") == columns("ditto 39.47 76.34\nperfedavg 28.90 69.14", cells)
    by_alpha = {"cifar10": (81.72, 83.84, 84.97, 85.42, 85.76), "fmnist": (84.26, 84.33, 85.57, 86.13, 88.42)}
    assert of("acs-table2") == {
        f"{name}-{alpha}": {"fedacs": figure}
        for name, figures in by_alpha.items()
        for alpha, figure in zip(("01", "05", "1", "5", "10"), figures, strict=True)
    }
    for cell in read("acs-table2")["cells"]:
        data = check(select(read("acs-table2"), cell)).data
        assert (data["alpha"], data["keep"], data["silos"]) == (
            {"01": 0.1, "05": 0.5, "1": 1, "5": 5, "10": 10}[cell.rpartition("-")[2]], 50, 100,
        )  # fmt: skip


def test_fedacss_figure_has_its_four_settings() -> None:
    studies = {cell: check(select(read("acs-figure1"), cell)) for cell in read("acs-figure1")["cells"]}
    for name in ("fmnist", "cifar10"):
        pathological, dirichlet, scarce, many = (
            studies[f"{name}-{setting}"] for setting in ("pathological", "dirichlet", "scarce", "many")
        )
        assert pathological.data["classes_per_silo"] == 2 and pathological.data["silos"] == 100
        assert (dirichlet.data["alpha"], dirichlet.data["silos"], dirichlet.data.get("keep")) == (0.5, 100, None)
        assert (scarce.data["alpha"], scarce.data["silos"], scarce.data["keep"]) == (0.5, 100, 50)
        assert (many.data["alpha"], many.data["silos"]) == (0.5, 500) and many.training.participation < 1
    assert all(len(study.seeds) == 5 for study in studies.values())


APPLE_CELLS = tuple(
    f"{name}-{setting}"
    for setting in ("pathological", "practical")
    for name in ("mnist", "cifar10", "organamnist", "pathmnist")
)


def test_the_figures_of_apples_first_table() -> None:
    assert of("apple-table1") == columns(
        """
        separate      97.34 74.96 93.14 87.09 78.20 63.06 65.21 61.36
        fedavg        95.71 51.44 59.43 56.61 94.00 34.32 86.56 53.83
        fedavg-local  99.52 90.10 96.76 93.21 97.47 71.99 93.75 78.70
        fedavg-ft     99.43 90.49 97.03 92.31 97.66 72.08 94.13 78.69
        fedprox-ft    99.43 90.49 97.03 92.38 97.66 72.08 94.13 78.69
        apfl          99.75 89.30 98.72 98.98 98.80 71.19 93.75 78.70
        heurfedamp    98.13 91.10 98.39 96.55 97.45 69.54 86.82 79.33
        fedfomo       99.71 91.96 99.31 97.24 98.05 70.15 82.86 79.39
        apple-0       99.73 92.22 99.66 96.78 99.00 75.62 95.70 84.22
        apple         99.77 92.68 99.61 97.51 98.97 77.41 95.62 86.39""",
        APPLE_CELLS,
    )


def test_the_figures_of_apples_second_table() -> None:
    found = of("apple-table2")
    assert set(found) == set(APPLE_CELLS)
    budgets = (11, 7, 5, 2, 1)
    fomo, apple = (70.15, 70.24, 70.44, 69.87, 69.93), (75.62, 76.14, 75.63, 74.84, 73.03)
    assert found["cifar10-practical"] == {
        **{f"fedfomo-{m}": figure for m, figure in zip(budgets, fomo, strict=True)},
        **{f"apple-{m}": figure for m, figure in zip(budgets, apple, strict=True)},
    }
    first = of("apple-table1")
    for cell, figures in found.items():  # with all models downloaded it is a part of the first table
        assert (figures["fedfomo-11"], figures["apple-11"]) == (first[cell]["fedfomo"], first[cell]["apple-0"])


@pytest.mark.parametrize("name", ["apple-table1", "apple-table2", "apple-figure3"])
def test_the_hyper_parameters_of_apples_studies(name: str) -> None:
    scheduler = {"mnist-pathological": ("cos", 0.1, 48), "cifar10-pathological": ("exp", 0.001, 32),
                 "organamnist-pathological": ("exp", 0.001, 32), "pathmnist-pathological": ("cos", 1.0, 16),
                 "mnist-practical": ("cos", 0.01, 48), "cifar10-practical": ("cos", 0.001, 32),
                 "organamnist-practical": ("cos", 0.1, 32), "pathmnist-practical": ("cos", 1.0, 16)}  # fmt: skip
    slow = {"pathmnist-pathological", "cifar10-practical", "organamnist-practical", "pathmnist-practical"}
    for cell in read(name)["cells"]:
        study = check(select(read(name), cell))
        train = study.training
        assert (train.rounds, train.local_epochs, train.batch_size) == (160, 5, 256)
        assert (train.optimizer, train.lr, train.momentum) == ("sgd", 0.01, 0.9)
        assert (study.data["silos"], study.model["name"]) == (12, "cnn-apple")
        assert study.data["split"] == ("pathological" if cell.endswith("pathological") else "shards")
        own = cell.startswith(("mnist", "cifar10"))  # of MedMNIST both parts are joined and split anew
        assert study.data["test_share"] == ("own" if own else 0.2)
        assert (study.data["mean"], study.data["deviation"]) == ([0.5], [0.5])
        assert study.data["resize"] == (28 if cell.startswith("cifar10") else 0)
        for label, method in study.methods.items():
            options: Any = method
            if label == "apple":
                assert (options.scheduler, options.mu, options.L) == scheduler[cell]
            elif label.startswith("apple"):
                assert options.mu == 0
            if label.startswith("apple"):
                assert options.dr_lr == (1e-4 if cell in slow else 1e-3) and options.fidelity == "paper"
                assert (options.dr_momentum, options.first) == (0.9, "all")
            if name == "apple-table2":
                assert options.budget == int(label.rpartition("-")[2])


EM_CELLS = ("femnist", "emnist", "cifar10", "cifar100", "shakespeare", "synthetic")
EM_MEAN = """
    separate   71.0 71.9 70.2 31.5 32.0 65.7
    fedavg     78.6 82.6 78.2 40.9 46.7 68.2
    fedprox    78.9 83.0 78.0 41.0 45.7 68.2
    fedavg-ft  75.3 83.1 82.3 39.0 40.0 68.9
    cfl        73.5 82.7 78.6 41.5 46.6 69.1
    pfedme     74.9 83.3 81.7 41.8 41.2 69.2
    fedem      79.9 83.5 84.3 44.1 46.7 74.7"""
EM_DECILE = """
    separate   57.5 64.3 48.7 19.9 16.6 58.4
    fedavg     63.9 75.0 72.4 33.2 42.8 58.9
    fedprox    64.0 75.4 70.8 33.2 41.9 59.0
    fedavg-ft  53.0 75.8 70.6 28.3 25.5 60.2
    cfl        55.1 75.0 71.2 34.1 42.7 59.0
    pfedme     57.6 76.4 73.6 32.5 36.8 61.2
    fedem      64.8 76.6 78.1 35.0 43.0 66.7"""


def test_the_figures_of_fedems_tables() -> None:
    assert of("em-table2") == columns(EM_MEAN, EM_CELLS)
    assert of("em-table2", "published_decile") == columns(EM_DECILE, EM_CELLS)
    assert of("em-table3") == columns(
        """
        fedavg     78.3 83.4 77.3 41.1 46.7 68.6
        fedavg-ft  74.2 83.7 80.4 36.5 40.2 69.1
        fedem      79.1 84.0 85.9 47.5 46.7 73.0""",
        EM_CELLS,
    )
    assert set(of("em-table2", "compared").values()) == {"weighted"}  # the paper weighs silos by their samples
    assert set(of("em-table3", "compared").values()) == {"unseen"}


EM_RATES = {
    "cifar10": {"fedem": 0.03, "fedavg": 0.01, "separate": 0.03, "fedavg-ft": 0.001, "cfl": 0.003, "fedprox": 0.01},
    "cifar100": {"fedem": 0.01, "fedavg": 0.01, "separate": 0.01, "fedavg-ft": 0.001, "cfl": 0.01, "fedprox": 0.01},
    "emnist": {"fedem": 0.05, "fedavg": 0.01, "separate": 0.01, "fedavg-ft": 0.01, "cfl": 0.01, "fedprox": 0.01},
    "femnist": {"fedem": 0.03, "fedavg": 0.03, "separate": 0.01, "fedavg-ft": 0.03, "cfl": 0.01, "fedprox": 0.05},
}
EM_INPUTS = {
    **dict.fromkeys(("cifar10", "cifar100"), ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])),
    **dict.fromkeys(("emnist", "femnist"), ([0.1307], [0.3081])),
    "shakespeare": ([], []),
}
EM_PULL = {"cifar10": (1, 0.001, 1), "cifar100": (0.1, 0.001, 1), "emnist": (0.1, 0.01, 1), "femnist": (0.05, 0.03, 10)}


@pytest.mark.parametrize("name", ["em-table2", "em-table3", "em-participation", "em-components"])
def test_the_hyper_parameters_of_fedems_studies(name: str) -> None:
    for cell in read(name)["cells"]:
        study, data_set = check(select(read(name), cell)), cell.partition("-")[0]
        train, data = study.training, study.data
        assert (train.local_epochs, train.batch_size) == (1, 128)
        assert train.rounds == (80 if data_set == "shakespeare" else 200)
        assert (train.schedule, train.schedule_at, train.schedule_factor) == ("steps", (0.5, 0.75), 0.1)
        assert train.schedule_rounds == train.rounds  # so that a shorter run is the beginning of this one
        assert (data.get("mean"), data.get("deviation")) == EM_INPUTS.get(data_set, (None, None))
        assert (data["test_share"], (1 - data["test_share"]) * data["validation"]) == (0.2, pytest.approx(0.2))
        assert train.unseen == (0.2 if name == "em-table3" else 0)
        if data_set not in EM_RATES:
            continue
        assert (train.optimizer, train.momentum, train.weight_decay) == ("sgd", 0.9, 5e-4)
        for label, method in study.methods.items():
            options: Any = method
            kind = "fedem" if label.startswith("fedem") else label
            if kind in EM_RATES[data_set]:
                assert study.training_of(label).lr == EM_RATES[data_set][kind]
            if label == "fedprox":
                assert options.mu == EM_PULL[data_set][0]
            if label == "pfedme":
                assert (options.inner_lr, options.lam) == EM_PULL[data_set][1:]
            if label == "fedem":
                assert options.components == 3


def test_fedems_splits_are_the_papers() -> None:
    data = {cell: check(select(read("em-table2"), cell)).data for cell in EM_CELLS}
    assert (data["cifar10"]["split"], data["cifar10"]["silos"], data["cifar10"]["alpha"]) == ("dirichlet", 80, 0.4)
    assert data["cifar10"]["label_groups"] == 3
    assert (data["cifar100"]["split"], data["cifar100"]["silos"], data["cifar100"]["samples"]) == ("pachinko", 100, 600)
    assert (data["cifar100"]["alpha"], data["cifar100"]["beta"]) == (0.4, 10)
    assert (data["emnist"]["silos"], data["emnist"]["alpha"], data["emnist"]["subsample"]) == (100, 0.4, 0.1)
    assert (data["femnist"]["split"], data["femnist"]["silos"]) == ("natural", 539)
    assert data["shakespeare"]["split"] == "natural"
    assert (data["synthetic"]["silos"], data["synthetic"]["test"]) == (300, 5000)


@pytest.mark.parametrize("name", ["em-table2", "em-table3"])
def test_a_role_that_is_large_enough_for_shakespeare_is_so_at_small_scale(name: str) -> None:
    full, small = (check(select(read(name), "shakespeare", scale)).data for scale in ("full", "small"))
    assert small["min_samples"] * small["stride"] <= full["min_samples"] * full["stride"]  # characters of a role
