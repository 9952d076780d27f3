"""What a silo uses today: a model of its own, of which only what it gives for each row is looked at, at the silo.

It is an ONNX file that takes encoded rows (as `coterie export` writes them), a column of the table, or in Python an
object with `predict_proba` or `predict` that takes the table's features as they are. Or `trees`: boosted trees are
trained on the silo's own rows, for those who have nothing else to compare with.
"""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from pandas import Series, to_numeric

from coterie.data.own.gather import Holding
from coterie.data.own.schema import Schema
from coterie.data.own.trees import TREES, grown
from coterie.data.silo import Array, Indices
from coterie.errors import BadInput, first_line

SILO = "{silo}"  # in a path: the silo's name
SURE = 0.9  # the probability of a class that is given without one
ANY = 1e-3  # of the probability goes to all classes alike: none is impossible
ALIKE = 0.1  # by which rows' sums of probabilities may differ


def is_column(incumbent: str) -> bool:
    """Whether it names a column of the table, which is then no feature."""
    return incumbent not in ("", TREES) and not incumbent.lower().endswith(".onnx")


def incumbent_file(incumbent: str, silo: str) -> Path | None:
    """The ONNX file of a silo that it names, if it names one."""
    return None if incumbent in ("", TREES) or is_column(incumbent) else Path(incumbent.replace(SILO, silo))


def by_trees(x: Array, y: Array, train: Indices, schema: Schema) -> tuple[Array | None, Mapping[str, Array] | None]:
    """What trees of a silo's training rows give for all its encoded rows, and the trees."""
    made = grown(x[train], y[train], len(schema.classes))
    if made is None:
        return None, None
    model, arrays = made
    flat = x.reshape(len(x), -1)
    if not schema.classes:
        return np.asarray(model.predict(flat), np.float32), arrays
    found = np.zeros((len(x), len(schema.classes)))
    found[:, arrays["places"]] = model.predict_proba(flat)
    return np.asarray((1 - ANY) * found + ANY / len(schema.classes), np.float32), arrays


def given(incumbent: str, holding: Holding, x: Array, schema: Schema) -> Array | None:
    """What a silo's incumbent gives for its rows, of which x are encoded; None where the silo has none.

    Probabilities (n, C) in the order of the schema's classes, or numbers (n,) in the unit of the targets.
    """
    where = f"silo '{holding.name}' incumbent"
    if holding.incumbent is not None:
        return _checked(_by_object(holding.incumbent, holding.x, schema, where), len(x), schema, where)
    if is_column(incumbent):
        column = holding.aside.get(incumbent)
        return None if column is None else _checked(_by_column(column, schema, where), len(x), schema, where)
    path = incumbent_file(incumbent, holding.name)
    if path is None or (SILO in incumbent and not path.exists()):
        return None
    return _checked(by_onnx(path, x, len(schema.classes))[1], len(x), schema, where)


def by_onnx(path: Path, x: Array, classes: int) -> tuple[str, Array]:
    """What an ONNX file gives for encoded rows: the name of that output, and its values."""
    if find_spec("onnxruntime") is None:
        raise BadInput(f"{path}: onnxruntime is not installed; pip install onnxruntime")
    import onnxruntime

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        found = session.run(None, {session.get_inputs()[0].name: x})
    except Exception as error:  # whatever a runtime meets in a file of one's own
        hint = "let it take batches of any size" if "invalid dimensions" in str(error) else "check the file"
        raise BadInput(f"{path}: cannot be used as ONNX ({first_line(error)[:200]}); {hint}") from None
    # A classifier may give its choice beside the probabilities.
    for output, each in zip(session.get_outputs(), found, strict=True):
        if np.shape(each) == (len(x), classes or 1):
            return output.name, np.asarray(each) if classes else np.asarray(each)[:, 0]
    raise BadInput(f"{path}: gives {[np.shape(each) for each in found]}, not one row of {classes or 1} for each")


def _by_object(model: Any, x: Any, schema: Schema, where: str) -> Array:
    shares = bool(schema.classes) and hasattr(model, "predict_proba")
    if not shares and not hasattr(model, "predict"):
        raise BadInput(f"{where}: a {type(model).__name__} has neither predict_proba nor predict; give a fitted model")
    try:
        found = np.asarray(model.predict_proba(x), dtype=float) if shares else np.asarray(model.predict(x))
    except Exception as error:  # whatever a model of one's own meets in these rows
        raise BadInput(f"{where}: cannot predict these rows ({first_line(error)[:200]}); give a fitted model") from None
    if not shares:
        return _by_column(Series(found.reshape(-1)), schema, where)
    names = [str(each) for each in getattr(model, "classes_", schema.classes)]
    known = len({*names} & {*schema.classes}) == len(names)
    if found.ndim != 2 or found.shape[1] != len(names) or not known:
        raise BadInput(f"{where}: its classes are {names[:5]}, the label's {list(schema.classes)[:5]}; map them")
    made = np.zeros((len(found), len(schema.classes)))
    made[:, [schema.classes.index(name) for name in names]] = found
    return made


def _by_column(column: Series, schema: Schema, where: str) -> Array:
    """A column of numbers, of classes, or of two classes the probability of the second."""
    numbers = np.asarray(to_numeric(column, errors="coerce"), dtype=float)
    if not schema.classes:
        return numbers
    names = [str(each) for each in column]
    if set(names) <= set(schema.classes):
        chosen = np.eye(len(schema.classes))[[schema.classes.index(name) for name in names]]
        return SURE * chosen + (1 - SURE) * (1 - chosen) / max(len(schema.classes) - 1, 1)
    if len(schema.classes) == 2 and ((numbers >= 0) & (numbers <= 1)).all():
        return np.stack([1 - numbers, numbers], 1)
    odd = next(name for name in names if name not in schema.classes)
    raise BadInput(
        f"{where}: {odd!r} is neither a class nor, of two classes, the probability of {schema.classes[-1]!r}"
    )


def _checked(found: Array, n: int, schema: Schema, where: str) -> Array:
    expected = (n, len(schema.classes)) if schema.classes else (n,)
    if found.shape != expected or not np.isfinite(found).all():
        raise BadInput(f"{where}: gives {found.shape} or values that are missing, expected {expected}; complete it")
    if not schema.classes:
        return np.asarray((found - schema.centre) / schema.unit, np.float32)
    total = found.sum(1, keepdims=True)
    if (found < 0).any() or (total <= 0).any():
        raise BadInput(f"{where}: gives negative probabilities, or none at all; give what predict_proba gives")
    if n and total.max() > (1 + ALIKE) * total.min():  # percentages and votes have one sum, what is before softmax none
        low, high = float(total.min()), float(total.max())
        raise BadInput(f"{where}: a row's values sum to {low:.3g} up to {high:.3g}; give what predict_proba gives")
    shares = found / total
    return np.asarray((1 - ANY) * shares + ANY / len(schema.classes), np.float32)
