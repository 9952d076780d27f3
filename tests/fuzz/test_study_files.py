"""Study files: whatever one holds, it is a study that can be written back, or one line says what is wrong."""

import math
import tomllib
from dataclasses import fields
from typing import Any

import pytest
from command import SMALL
from fuzzing import bounded, fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie import toml
from coterie.data.catalog import CATALOG
from coterie.data.splits import SPLITS
from coterie.engine.training import Training
from coterie.errors import BadInput
from coterie.methods import METHODS, WRAPPERS
from coterie.models import MODELS, build
from coterie.studies.study import CELLS, KEYS, Machine, Study, built_in, check, override, read, select

SCHEMAS = [Training, Machine, *METHODS.values(), *(schema for schema, _ in WRAPPERS.values())]
SCHEMAS += [schema for schema, _ in (*MODELS.values(), *SPLITS.values())] + [
    entry.options for entry in CATALOG.values()
]
OPTIONS = sorted({f.name for schema in SCHEMAS for f in fields(schema)} | {"dirty", "dirty_labels", "subsample"})
WORDS = [
    *METHODS,
    *CATALOG,
    *SPLITS,
    *MODELS,
    *WRAPPERS,
    "auto",
    "all",
    "even",
    "coarse",
    "test",
    "cos",
    "bf16",
    "amp-mnist",
]

keys = st.sampled_from([*KEYS, *CELLS, *OPTIONS, *WORDS, "method", "train"]) | names
plain = st.one_of(st.sampled_from(WORDS), names, numbers, st.booleans(), st.none(), st.dates(), st.datetimes())
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(keys, inner, max_size=4), max_leaves=6
)


def some(schema: Any, *more: str) -> st.SearchStrategy[dict[str, Any]]:
    """One or two of its options with numbers, lists of numbers, or words; now and then with anything."""
    known = st.sampled_from([*(f.name for f in fields(schema)), *more, "method"])
    fitting = st.one_of(numbers, numbers, st.lists(numbers, max_size=4), st.sampled_from(WORDS), st.booleans())
    likely = st.dictionaries(known, fitting, min_size=1, max_size=2)
    return st.one_of(likely, likely, st.dictionaries(known | keys, values, max_size=3))


@st.composite
def tables(draw: Any) -> dict[str, Any]:
    """The small study with one of its tables about something else, or with anything under some key."""
    table = tomllib.loads(SMALL)
    part = draw(st.sampled_from(["data", "data", "model", "train", "engine", "methods", "methods", "any"]))
    if part == "data":
        name, split = draw(st.sampled_from(list(CATALOG))), draw(st.sampled_from(list(SPLITS)))
        if CATALOG[name].pool is None:
            table["data"] = {"name": name, **draw(some(CATALOG[name].options, "dirty"))}
        else:
            own = draw(st.just({}) | some(CATALOG[name].options, "dirty", "dirty_labels", "subsample"))
            table["data"] = {"name": name, "split": split, **own, **draw(some(SPLITS[split][0]))}
    elif part == "model":
        name = draw(st.sampled_from(list(MODELS)))
        table["model"] = {"name": name, **draw(some(MODELS[name][0], "name"))}
    elif part == "methods":
        name = draw(st.sampled_from(list(METHODS)))
        wrapped = {key: draw(some(schema)) for key, (schema, _) in WRAPPERS.items() if draw(st.integers(0, 4)) == 0}
        trained = {"train": draw(some(Training))} if draw(st.integers(0, 4)) == 0 else {}
        label = draw(st.just(name) | names)
        table["methods"] = {label: {"method": name, **draw(some(METHODS[name])), **wrapped, **trained}}
    elif part == "any":
        table[draw(keys)] = draw(values)
    else:
        table[part] = draw(some(Training if part == "train" else Machine))
    return table


def checked(table: dict[str, Any]) -> Study:
    study = check(select(table))
    assert check(tomllib.loads(study.as_toml())) == study
    return study


def small(**changes: Any) -> dict[str, Any]:
    return tomllib.loads(SMALL) | changes


@fuzz(2500, tables())
@example(small(train={"lr": 10**400}))
@example(small(train={"lr": math.inf}))
@example(small(train={"batch_size": 2**70}))
@example(small(data={"name": "digits", "groups": 10**12, "silos": 10**12, "sizes": [10]}))
@example(small(data={"name": "digits", "members": [10**6] * 1000, "sizes": [10]}))
@example(small(data={"name": "synthetic", "dimension": 10**12}))
@example(small(model={"name": "char-lstm", "layers": 10**9}))
@example(small(methods={"../../x": {"method": "fedamp"}}))
@example(small(methods={"x\0": {"method": "fedamp"}}))
def test_a_table_is_a_study_that_reads_back_or_is_refused(table: dict[str, Any]) -> None:
    survives(lambda: checked(table))


contents = st.one_of(
    bytes_like(*(text.encode() for text in [SMALL, *built_in().values()])),
    st.text(st.characters(exclude_categories=["Cs"])).map(str.encode),
    st.tuples(st.sampled_from(OPTIONS), st.integers(1, 5000)).map(lambda at: f"{'.'.join([at[0]] * at[1])}=1".encode()),
    st.tuples(st.sampled_from(KEYS), st.integers(1, 5000)).map(
        lambda at: f"{at[0]}={'[' * at[1]}{']' * at[1]}".encode()
    ),
)


@fuzz(600, contents)
@example(b"seeds = [0x" + b"f" * 10_000 + b"]")
@example(b"[cells.x]\n" + b"a." * 3000 + b"b=1")
def test_a_file_is_a_study_or_is_refused(content: bytes) -> None:
    with scratch() as folder:
        path = folder / "study.toml"
        path.write_bytes(content)
        survives(lambda: checked(read(str(path))))


paths = st.lists(keys, min_size=1, max_size=4).map(".".join)
assignments = st.one_of(
    st.tuples(paths, plain.map(str) | st.text(max_size=30)).map("=".join),
    st.text(max_size=30),
    st.integers(1, 20_000).map(lambda depth: "a." * depth + "b=1"),
    st.integers(1, 20_000).map(lambda depth: "train.lr=" + "[" * depth),
    st.integers(1, 20_000).map(lambda depth: "train.lr=" + "{a=" * depth),
    st.integers(1, 20_000).map(lambda digits: "train.lr=" + "9" * digits),
)


@fuzz(800, st.lists(assignments, max_size=3))
@example(["a." * 5000 + "b=1"])
@example(["train.lr=" + "9" * 309])
def test_an_assignment_is_applied_or_refused(words: list[str]) -> None:
    survives(lambda: checked(override(tomllib.loads(SMALL), words)))


texts = names.filter(lambda text: text.encode(errors="replace").decode() == text)
tree = st.recursive(
    texts | st.integers() | st.floats(allow_nan=False) | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
)


@fuzz(400, tree)
def test_what_is_written_as_toml_is_read_as_it_was(value: Any) -> None:
    table = {"value": value}
    assert tomllib.loads(toml.dumps(table)) == table


@pytest.mark.parametrize(
    "model",
    [{"name": "mlp", "hidden": [10**12]}, {"name": "mlp", "hidden": [2**62, 2**62]}, {"name": "cnn", "hidden": 10**15},
     {"name": "resnet18", "width": 2**60}, {"name": "mobilenet_v2", "width": 99.0},
     {"name": "char-lstm", "hidden": 10**9}],
)  # fmt: skip
def test_a_model_that_no_memory_holds_is_refused(model: dict[str, Any]) -> None:
    shape = (80,) if model["name"] == "char-lstm" else (3, 32, 32)
    with bounded(1 << 30), pytest.raises(BadInput, match=r"\[model\]"):
        build(model, shape, 10)
