"""A study: read, checked, changed from the command line, written back."""

import ast
import tomllib
from pathlib import Path

import pytest
from command import SMALL

import coterie
from coterie.errors import BadInput
from coterie.methods import METHODS
from coterie.studies.study import built_in, check, override, read, select


def table(**changes):
    return {**tomllib.loads(SMALL), **changes}


@pytest.mark.parametrize("name", built_in())
def test_a_built_in_study_is_sound_and_says_what_it_is(name):
    study = check(select(read(name)))
    assert study.name == name and study.about


@pytest.mark.parametrize("name", built_in())
def test_a_study_written_back_is_the_same_study(name):
    study = check(select(read(name)))
    assert check(tomllib.loads(study.as_toml())) == study


def test_every_default_is_written_back():
    written = check(table()).as_table()
    assert list(written) == ["name", "seeds", "data", "model", "train", "measure", "engine", "methods"]
    assert written["model"] == {"name": "mlp", "hidden": [16]}
    assert written["data"]["dominant"] == 0.8 and written["data"]["members"] == [2, 2, 2]
    assert written["train"]["participation"] == 1.0
    assert written["engine"] == {
        "device": "auto",
        "rows": "all",
        "precision": "float32",
        "checkpoint_every": "auto",
        "models": True,
        "in_memory": "auto",
    }
    assert written["methods"]["fedamp"]["beta"] == {"start": 1e4, "factor": 0.1, "every": 30, "floor": 10}


def test_an_empty_study_is_digits_and_needs_methods():
    study = check({"methods": {"separate": {}}})
    assert (study.name, study.seeds, study.data["name"], study.model["name"]) == ("study", (0,), "digits", "mlp")
    with pytest.raises(BadInput, match=r"no methods to run; add a \[methods.NAME\] table or --methods NAME"):
        check({})
    with pytest.raises(BadInput, match="no methods"):
        check(table(methods={}))


def test_methods_are_picked_in_the_order_asked_and_added_with_their_defaults():
    picked = check(table(), ["fedprox", "fedamp"]).methods
    assert list(picked) == ["fedprox", "fedamp"]
    assert picked["fedamp"].tau == 0.75  # the study's
    assert picked["fedprox"] == METHODS["fedprox"]()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"seed": [0]}, "study: unknown key 'seed'; did you mean 'seeds'?"),
        ({"methods": {"fedamq": {}}}, "unknown method 'fedamq'; did you mean 'fedamp'?"),
        ({"methods": {"fedamp": {"taw": 1}}}, "[methods.fedamp]: unknown key 'taw'; did you mean 'tau'?"),
        ({"methods": {"fedamp": {"tau": 2}}}, "[methods.fedamp] tau: 2.0 is out of range; allowed: [0, 1]"),
        ({"methods": {"fedamp": 1}}, "[methods.fedamp]: expected a table, found 1"),
        ({"methods": ["fedamp"]}, "study: 'methods' must be a table, e.g. [methods]"),
        ({"train": {"lrr": 1}}, "[train]: unknown key 'lrr'; did you mean 'lr'?"),
        ({"train": {"measure": ["train"]}}, "[train] measure: ['train'] has no 'test'"),
        ({"train": {"measure": ["tests"]}}, "[train] measure[0]: unknown value 'tests'; did you mean 'test'?"),
        ({"data": {"name": "digitz"}}, "[data] name: unknown data set 'digitz'; did you mean 'digits'?"),
        ({"data": {"name": 3}}, "[data] name: expected text, found 3"),
        ({"data": {"split": ["iid"]}}, "[data] split: expected text, found ['iid']"),
        ({"data": {"split": "idd"}}, "did you mean 'iid'?"),
        ({"data": {"silo": 3}}, "did you mean 'silos'?"),
        ({"model": {"name": "linaer"}}, "[model] name: unknown model 'linaer'; did you mean 'linear'?"),
        ({"model": {"name": {}}}, "[model] name: expected text, found {}"),
        ({"model": {"hiden": [3]}}, "[model] (mlp): unknown key 'hiden'; did you mean 'hidden'?"),
        ({"engine": {"rows": 0}}, "[engine] rows: 0 is out of range"),
        ({"name": ""}, "name, about, paper, cell, scale, shows, measured must be text"),
        ({"name": 3}, "name, about, paper, cell, scale, shows, measured must be text"),
        ({"about": 3}, "name, about, paper, cell, scale, shows, measured must be text"),
        ({"seeds": 0}, "'seeds' must be a list of different whole numbers from 0"),
        ({"seeds": []}, "'seeds' must be"),
        ({"seeds": [0, 0]}, "'seeds' must be"),
        ({"seeds": [-1]}, "'seeds' must be"),
        ({"seeds": [True]}, "'seeds' must be"),
        ({"seeds": [0.5]}, "'seeds' must be"),
        ({"seeds": [2**63]}, "'seeds' must be"),
    ],
)
def test_a_study_with_a_mistake_is_refused_in_words(changes, said):
    with pytest.raises(BadInput) as error:
        check(table(**changes))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("assignment", "path", "value"),
    [
        ("train.lr=0.5", ["train", "lr"], 0.5),
        ("train.lr = 0.5", ["train", "lr"], 0.5),
        ("seeds=[1, 2]", ["seeds"], [1, 2]),
        ("name=other", ["name"], "other"),
        ('name="a=b"', ["name"], "a=b"),
        ("name=a=b", ["name"], "a=b"),
        ("name=", ["name"], ""),
        ("methods.fedamp.beta=inf", ["methods", "fedamp", "beta"], float("inf")),
        ("methods.fedamp.beta={start=1}", ["methods", "fedamp", "beta"], {"start": 1}),
        ("methods.fedamp.beta.start=1", ["methods", "fedamp", "beta", "start"], 1),
        ("methods.fedavg-ft.ft_epochs=2", ["methods", "fedavg-ft", "ft_epochs"], 2),
        ("new.table=true", ["new", "table"], True),
        ("name=" + "9" * 5000, ["name"], "9" * 5000),
        ("name=" + "[" * 5000, ["name"], "[" * 5000),
    ],
)
def test_an_assignment_sets_one_value(assignment, path, value):
    before = table()
    found = override(before, [assignment])
    for key in path:
        found = found[key]
    assert found == value
    assert before == table()  # not in place


def test_later_assignments_win():
    assert override({}, ["a.b=1", "a.c=2", "a.b=3"]) == {"a": {"b": 3, "c": 2}}


def test_another_model_by_assignment_has_none_of_the_options_of_the_one_before():
    before = {"model": {"name": "mobilenet_v2", "strides": "imagenet"}, "data": {"name": "mnist", "silos": 5}}
    assert override(before, ["model.name=cnn", "model.hidden=32"])["model"] == {"name": "cnn", "hidden": 32}
    assert override(before, ["model.name=mobilenet_v2"])["model"] == before["model"]
    assert override(before, ["data.name=fashion-mnist"])["data"] == {"name": "fashion-mnist", "silos": 5}


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("train.lr", "--set train.lr: expected key.path=value, e.g. train.lr=0.1"),
        ("=1", "expected key.path=value"),
        ("a..b=1", "expected key.path=value"),
        ("name.x=1", "--set name.x=1: 'name' is a value, not a table"),
    ],
)
def test_an_assignment_that_makes_no_sense_is_refused(assignment, said):
    with pytest.raises(BadInput) as error:
        override(table(), [assignment])
    assert said in str(error.value)


def test_a_study_is_found_by_name_or_by_path(tmp_path):
    (tmp_path / "own.toml").write_text('name = "own"', "utf-8")
    (tmp_path / "plain").write_text('name = "plain"', "utf-8")
    assert read(None) == read("digits")
    assert read(str(tmp_path / "own.toml")) == {"name": "own"}
    assert read(str(tmp_path / "plain")) == {"name": "plain"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("digit", None, "unknown study 'digit'; did you mean 'digits'?"),
        ("", None, "unknown study ''"),
        ("x" * 5000, None, "File name too long"),
        ("missing.toml", None, "study missing.toml: No such file or directory"),
        ("folder.toml", "", "Is a directory"),
        ("binary.toml", b"\xff\xfe\x00", "not a text file; give a .toml file in UTF-8"),
        ("broken.toml", b"name = [", "study broken.toml: not valid TOML"),
        ("twice.toml", b"a = 1\na = 2", "not valid TOML"),
        ("number.toml", b"a = " + b"9" * 5000, "not valid TOML"),
        ("deep.toml", b"a = " + b"[" * 100_000, "not valid TOML"),
    ],
)
def test_a_study_that_cannot_be_read_is_refused(tmp_path, monkeypatch, name, content, said):
    monkeypatch.chdir(tmp_path)
    if isinstance(content, bytes):
        Path(name).write_bytes(content)
    elif content is not None:
        Path(name).mkdir()
    with pytest.raises(BadInput) as error:
        read(name)
    assert said in str(error.value)


def test_nothing_in_the_package_runs_or_unpickles_what_a_file_says():
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            where = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", None)}
                assert not names & {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}, where
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                assert called not in ("eval", "exec", "compile", "__import__", "torch.load", "torch.save"), where
                for keyword in node.keywords:
                    if keyword.arg == "allow_pickle":
                        assert ast.unparse(keyword.value) == "False", where


def test_a_label_may_name_its_method_and_train_in_its_own_way() -> None:
    table = {
        "train": {"lr": 0.1, "rounds": 2},
        "methods": {"fedavg": {}, "slow": {"method": "fedavg", "train": {"lr": 0.01, "local_epochs": 1}}},
    }
    study = check(table)
    assert type(study.methods["slow"]) is type(study.methods["fedavg"])
    assert (study.training_of("fedavg").lr, study.training_of("slow").lr) == (0.1, 0.01)
    assert study.training_of("slow").rounds == 2
    again = check(tomllib.loads(study.as_toml()))
    assert again == study


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"rounds": 3}, "'rounds' cannot differ between methods"),
        ({"lr": -1}, "out of range"),
        ("fast", "expected a table"),
    ],
)
def test_a_methods_own_training_is_checked(own: object, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        check({"methods": {"fedavg": {"train": own}}})


CELLED = {
    "data": {"name": "digits"},
    "train": {"rounds": 9, "lr": 0.1},
    "methods": {"fedavg": {}, "fedprox": {"mu": 0.1}},
    "cells": {
        "one": {"methods": {"fedprox": {"mu": 0.5}}, "published": {"fedprox": 90.5}},
        "two": {"train": {"lr": 0.2}},
    },
    "small": {"train": {"rounds": 2}},
}


def test_a_cell_changes_what_it_names_and_nothing_else() -> None:
    one, two = check(select(CELLED, "one")), check(select(CELLED, "two"))
    assert (one.methods["fedprox"].mu, two.methods["fedprox"].mu) == (0.5, 0.1)
    assert (one.training.lr, two.training.lr, two.training.rounds) == (0.1, 0.2, 9)
    assert (one.published, two.published) == ({"fedprox": 90.5}, {})
    assert check(select(CELLED)) == one  # the first, where none is asked for
    assert check(select(CELLED, "two", "small")).training.rounds == 2
    assert check(tomllib.loads(one.as_toml())) == one


def test_a_cell_has_a_small_scale_of_its_own_and_another_model_leaves_the_options_of_the_first() -> None:
    cells = {
        "one": {"model": {"name": "cnn", "hidden": 9}, "small": {"model": {"name": "mlp"}, "train": {"rounds": 1}}},
        "two": {"model": {"hidden": 9}},
    }
    table = {**CELLED, "model": {"name": "cnn", "hidden": 7, "kernel": 3}, "cells": cells}
    full, small = check(select(table, "one")), check(select(table, "one", "small"))
    assert (full.model["hidden"], full.model["kernel"], full.training.rounds) == (9, 3, 9)
    assert (small.model["name"], small.training.rounds, small.training.lr) == ("mlp", 1, 0.1)
    assert (full.cell, full.scale, small.cell, small.scale) == ("one", "", "one", "small")
    assert check(select(table, "two", "small")).training.rounds == 2
    assert check(tomllib.loads(small.as_toml())) == small


@pytest.mark.parametrize(
    ("cell", "scale", "said"), [("on", "full", "did you mean 'one'"), ("one", "tiny", "expected full or small")]
)
def test_a_cell_or_scale_that_is_not_there_is_refused(cell: str, scale: str, said: str) -> None:
    with pytest.raises(BadInput, match=said):
        select(CELLED, cell, scale)


@pytest.mark.parametrize("figure", [101, "good", True, -1])
def test_a_published_figure_is_a_percentage(figure: object) -> None:
    with pytest.raises(BadInput, match="percentage"):
        check({"methods": {"fedavg": {}}, "published": {"fedavg": figure}})


@pytest.mark.parametrize("name", built_in())
def test_every_cell_of_a_built_in_study_is_sound_and_publishes_only_what_it_runs(name: str) -> None:
    for cell in read(name).get("cells", {None: {}}):
        for scale in ("full", "small"):
            study = check(select(read(name), cell, scale))
            assert set(study.published) <= set(study.methods)


def test_what_is_auto_is_searched_for_unless_a_method_says_otherwise():
    train = {"rounds": "auto", "lr": "auto", "optimizer": "auto"}
    methods = {
        "fedavg": {},
        "slow": {"method": "fedavg", "train": {"lr": 0.01}},
        "apple": {"train": {"optimizer": "sgd"}},
    }
    study = check(table(train=train, methods=methods))
    assert [study.searched(label) for label in methods] == [("lr", "optimizer"), (), ("lr",)]
    assert (study.training.rounds, study.training.patience) == (200, 10)
    assert study.as_table()["train"] | train == study.as_table()["train"]
    assert check(tomllib.loads(study.as_toml())) == study
    own = check(table(methods={"fedavg": {}, "apple": {"train": {"lr": "auto"}}}))
    assert own.searched("fedavg") == () and own.searched("apple") == ("lr",)
    assert check(tomllib.loads(own.as_toml())) == own


def test_without_a_search_values_are_fixed():
    study = check(table(train={"rounds": "auto", "lr": "auto"}, methods={"fedavg": {}, "apple": {}})).fixed()
    assert (study.training.rounds, study.training.patience, study.auto) == (30, 0, {})
    assert (study.training_of("fedavg").lr, study.training_of("apple").lr) == (0.05, 0.25)
    plain = check(table())
    assert plain.fixed() == plain


def test_a_stack_is_not_searched_for_where_its_members_are():
    methods = {"fedavg": {}, "apple": {"train": {"optimizer": "sgd"}}, "stack": {"of": ["fedavg", "apple"]}}
    study = check(table(train={"lr": "auto", "optimizer": "auto"}, methods=methods))
    assert study.searched("stack") == () and study.searched("fedavg") == ("lr", "optimizer")
    found = study.settled({"fedavg": {"lr": 1.0, "optimizer": "adam"}, "apple": {"optimizer": "sgd", "lr": 0.5}})
    assert found.methods["stack"].of == (
        {"method": "fedavg", "train": {"lr": 1.0, "optimizer": "adam"}},
        {"method": "apple", "train": {"lr": 0.5, "optimizer": "sgd"}},
    )
    assert check(tomllib.loads(found.as_toml())) == found
    fixed = {"method": "apple", "train": {"lr": 0.25, "optimizer": "sgd"}}
    assert study.fixed().methods["stack"].of == ("fedavg", fixed)


def test_a_stack_has_a_search_of_its_own_for_members_that_nothing_else_trains():
    train, own = {"lr": "auto"}, {"method": "fedavg", "train": {"lr": 0.3}}
    other = {"method": "fedamp", "tau": 0.1}
    study = check(table(train=train, methods={"fedamp": {}, "stack": {"of": [own, "fedamp", other]}}))
    assert study.searched("stack") == ("lr",)
    found = study.settled({"fedamp": {"lr": 1.0}, "stack": {"lr": 0.2}})
    assert found.methods["stack"].of == (own, {"method": "fedamp", "train": {"lr": 1.0}}, other)
    known = check(table(train=train, methods={"fedamp": {}, "stack": {"of": [own, "fedamp"]}}))
    assert known.searched("stack") == ()
    given = check(table(train=train, methods={"fedamp": {}, "stack": {"of": ["fedamp"], "train": {"lr": 0.2}}}))
    assert given.settled({"fedamp": {"lr": 1.0}}).methods["stack"].of == ("fedamp",)


def test_a_member_with_a_rate_of_its_own_keeps_the_optimizer_that_the_rate_is_for():
    own, plain = {"method": "fedavg", "train": {"lr": 0.3}}, {"method": "fedamp", "tau": 0.1}
    train = {"lr": "auto", "optimizer": "auto", "weight_decay": "auto"}
    study = check(table(train=train, methods={"fedavg": {}, "stack": {"of": [own, plain]}}))
    adam = {"lr": 0.001, "optimizer": "adam", "weight_decay": 0.1}
    settled = study.settled({"fedavg": adam, "stack": adam})
    kept = {"method": "fedavg", "train": {"lr": 0.3, "optimizer": "sgd", "weight_decay": 0.0}}
    assert settled.methods["stack"].of == (kept, plain)
    assert study.pinned().methods["stack"].of == (kept, plain)  # so also while the stack's own rate is searched for
    assert study.pinned().searched("stack") == study.searched("stack") != ()


def test_only_some_keys_are_auto():
    with pytest.raises(BadInput, match=r"\[train\] momentum: expected number, found 'auto'"):
        check(table(train={"momentum": "auto"}))


@pytest.mark.parametrize("name", [name for name in built_in() if "small" in built_in()[name]])
def test_every_small_scale_says_what_it_can_show(name: str) -> None:
    for cell in read(name).get("cells", {None: {}}):
        assert check(select(read(name), cell, "small")).shows
        assert not check(select(read(name), cell)).shows


def test_a_level_of_security_is_for_all_methods_that_upload_and_is_written_back_with_each() -> None:
    table = {"secure": {"level": "blind", "sketch": 64}, "methods": {"fedavg": {}, "separate": {}, "fedamp": {}}}
    study = check(table)
    assert study.as_table()["methods"]["fedavg"]["blind"]["sketch"] == 64
    assert "blind" not in study.as_table()["methods"]["separate"]
    assert check(study.as_table()).methods == study.methods


@pytest.mark.parametrize("secure", [{"level": "open"}, {"level": "blind", "sketches": 3}, {}, {"sketch": 64}])
def test_an_unknown_level_is_refused(secure: dict[str, object]) -> None:
    if not secure:
        assert (
            check({"secure": secure, "methods": {"fedavg": {}}}).methods == check({"methods": {"fedavg": {}}}).methods
        )
        return
    with pytest.raises(BadInput, match=r"\[secure\]"):
        check({"secure": secure, "methods": {"fedavg": {}}})
