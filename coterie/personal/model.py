"""One silo's model in use: raw rows in, predictions out, with nothing of the federation around it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pandas import DataFrame, RangeIndex, Series
from torch import Tensor, nn

from coterie.data.arrays import model_inputs
from coterie.data.own.gather import Holding
from coterie.data.own.incumbent import given, is_column
from coterie.data.own.label import read_label
from coterie.data.own.schema import Schema
from coterie.data.silo import Array, check_finite
from coterie.engine.predictors import tempered
from coterie.errors import BadInput
from coterie.models.foreign import tokens_of

AT_ONCE = 4096  # samples


class Deployed(nn.Module):
    """A silo's predictor, tempered: probabilities of classes, or numbers in the label's unit."""

    def __init__(self, core: nn.Module, schema: Schema, classes: int, temperature: float = 1.0) -> None:
        super().__init__()
        self.core = core
        self.classes, self.centre, self.unit, self.temperature = classes, schema.centre, schema.unit, temperature
        self.eval()

    def forward(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """(n, classes) probabilities, or (n, targets) numbers; `beside`: what the silo's own model gives for x."""
        out: Tensor = self.core(x, beside)
        if self.classes:
            return out if self.temperature == 1 else tempered(out, self.temperature, 1)
        return (out.flatten(1) if out.ndim > 1 else out.unsqueeze(1)) * self.unit + self.centre


@dataclass(frozen=True, repr=False)
class PersonalModel:
    """The model of one silo."""

    silo: str
    module: Deployed
    schema: Schema
    about: Mapping[str, Any] = field(default_factory=dict)  # method, study, round, seed, …
    positive: int = 1  # of two classes the one that has a threshold
    threshold: float = 0.5  # the probability from which on it is predicted
    incumbent: Any = None  # the silo's own model, where that is mixed in: an object, or the path of an ONNX file

    def __repr__(self) -> str:
        inputs = " × ".join(map(str, self.schema.shape))
        what = f"{self.module.classes} classes" if self.module.classes else "numbers"
        return f"PersonalModel({self.silo}: {self.about.get('method', 'a model')}, {inputs} inputs, {what})"

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise BadInput(
            "a PersonalModel may hold a silo's rows and is not pickled; keep its result with result.save(folder), "
            "and read models/METHOD/SILO.safetensors in it with coterie.load_model"
        )

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of their probabilities; none where the label is a number."""
        return list(self.schema.classes) or [str(c) for c in range(self.module.classes)]

    def predict(self, data: "DataFrame | Array | Tensor | Sequence[str]") -> DataFrame:
        """A prediction for each row of a table, sample of an array or text, and of classes their probabilities."""
        out = self._outputs(data)
        index = data.index if isinstance(data, DataFrame) else RangeIndex(len(out))
        if not self.module.classes:
            named = ["prediction"] if out.shape[1] == 1 else [f"prediction_{i}" for i in range(out.shape[1])]
            return DataFrame(out, index=index, columns=named)
        table = DataFrame(out, index=index, columns=[f"probability_{name}" for name in self.classes])
        called = out.argmax(1)
        if out.shape[1] == 2:
            called = np.where(out[:, self.positive] >= self.threshold, self.positive, 1 - self.positive)
        table.insert(0, "prediction", np.array(self.classes, dtype=object)[called])
        return table

    def predict_proba(self, data: "DataFrame | Array | Tensor | Sequence[str]") -> Array:
        """(n, classes): the probability of each class, in the order of `classes`."""
        if not self.module.classes:
            raise BadInput("this model predicts numbers, which have no probabilities; take predict")
        return self._outputs(data)

    def score(self, data: "DataFrame | Array | Tensor | Sequence[str]", labels: Any = None) -> float:
        """The accuracy of the most probable class, or of numbers r2; rows without a label are left out."""
        if labels is None:
            raise BadInput("score: no labels to hold the predictions against; give model.score(rows, labels)")
        out = self._outputs(data)
        predicted = np.array(self.classes, dtype=object)[out.argmax(1)] if self.module.classes else out[:, 0]
        column = Series(np.asarray(labels))
        if len(column) != len(predicted):
            raise BadInput(f"score: {len(predicted)} rows but {len(column)} labels; give one label for each row")
        label, there = read_label(column, "score: labels")
        if self.module.classes:
            return float((predicted[there] == label.names()).mean())
        off, spread = label.values - predicted[there], label.values - label.values.mean()
        # Labels that are all alike leave nothing to explain: no r2.
        return float(1 - (off @ off) / (spread @ spread)) if spread.any() else float("nan")

    def _outputs(self, data: "DataFrame | Array | Tensor | Sequence[str]") -> Array:
        """(n, classes) probabilities, or (n, targets) numbers."""
        x = self.encode(data)
        beside = self._beside(data, x)
        both = zip(*(_split(each, x) for each in (x, beside)), strict=True)
        with torch.no_grad():
            parts = [self.module(*part) for part in both]
        out: Array = torch.cat(parts).numpy() if parts else np.zeros((0, max(self.module.classes, 1)), np.float32)
        if self.module.classes and out.ndim != 2:
            raise BadInput("this model predicts a class for every place of a sequence; load it in PyTorch instead")
        return out[:, : len(self.classes)] if self.module.classes else out

    def _beside(self, data: "DataFrame | Array | Tensor | Sequence[str]", x: Array) -> Array | None:
        """What the silo's own model gives for the rows: the one that was given, or as the file names it."""
        named, own = str(self.about.get("incumbent", "")), self.incumbent
        path = own if isinstance(own, str | Path) else named if is_column(named) else ""  # a file opens no other file
        model = None if isinstance(own, str | Path) else own
        table = data if isinstance(data, DataFrame) else DataFrame()
        features = [column.name for column in self.schema.columns if column.name in table]
        holding = Holding(self.silo, table[features] if features else x, Series(dtype=object), aside=table)
        return given(str(path), replace(holding, incumbent=model), x, self.schema)

    def to_onnx(self, path: "str | Path") -> Path:
        """Write the model as ONNX: encoded rows in, probabilities or numbers out."""
        from coterie.personal.onnx_graph import write_onnx

        write_onnx(self, Path(path))
        return Path(path)

    def encode(self, data: "DataFrame | Array | Tensor | Sequence[str]") -> Array:
        """Rows, samples or texts as the model takes them, just as in training."""
        if isinstance(data, list | tuple) and data and all(isinstance(each, str) for each in data):
            return self._tokens(data)
        if isinstance(data, DataFrame):
            if not self.schema.columns:
                raise BadInput("this model takes arrays, not a table; give it what it was trained on")
            return self.schema.encode(data, "data")
        if self.schema.columns:
            names = ", ".join(column.name for column in self.schema.columns)
            raise BadInput(
                f"this model takes a table with the columns {names}; give it a DataFrame, CSV or Parquet file"
            )
        x = model_inputs(np.asarray(data), Path("data"))
        if x.shape[1:] != self.schema.shape:
            raise BadInput(f"data: samples are {x.shape[1:]}, the model takes {self.schema.shape}")
        check_finite(x, "data")
        return x

    def _tokens(self, texts: Sequence[str]) -> Array:
        tokenizer, padding = self.about.get("tokenizer"), str(self.about.get("padding", ""))
        if not tokenizer or not padding.isdecimal() or len(self.schema.shape) != 1:
            raise BadInput("data: this model's file has no tokenizer, so it cannot read texts; give it tokens")
        return tokens_of(texts, tokenizer, int(padding), self.schema.shape[0])


def _split(rows: Array | None, x: Array) -> Sequence[Tensor | None]:
    """Rows, a few at a time; of none, as often none."""
    if rows is None:
        return [None] * -(-len(x) // AT_ONCE)
    return torch.from_numpy(rows).split(AT_ONCE)  # type: ignore[no-untyped-call, no-any-return]
