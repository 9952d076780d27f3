"""The tokenizer of a model of transformers travels in the model's file: texts in, predictions out."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.personal.export import save_models
from coterie.personal.file import load_model
from coterie.personal.model import PersonalModel
from coterie.wire import Predictor

VOCABULARY = {"[PAD]": 0, "[UNK]": 1, "fever": 2, "no": 3, "cough": 4}
TOKENIZER = {
    "version": "1.0",
    "model": {"type": "WordLevel", "vocab": VOCABULARY, "unk_token": "[UNK]"},
    "pre_tokenizer": {"type": "Whitespace"},
}  # as the library tokenizers writes it; what is left out is none


class Bag(nn.Module):
    """Scores of three classes by the mean of the tokens' vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(6, 4), nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.out(self.embed(tokens).mean(1))
        return y


def saved(folder: Path, tokenizer: bool = True) -> PersonalModel:
    """A model that was trained from such a folder, as it is loaded."""
    (folder / "bert").mkdir()
    (folder / "bert" / "config.json").write_text(json.dumps({"pad_token_id": 5}))
    if tokenizer:
        (folder / "bert" / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    model = Model(Bag, 3)
    about = {"model": {"name": f"hf:{folder / 'bert'}"}, "shape": [4], "outputs": 3}
    save_models(folder / "models", model, Predictor(models=model.start(0)[None]), ["north"], about)
    for each in (folder / "bert").iterdir():
        each.unlink()  # nothing but the file is needed
    return load_model(folder / "models" / "north.safetensors", Bag)


class Whitespace:
    """As much of the library as is used."""

    def __init__(self, vocabulary: dict[str, int]) -> None:
        self.vocabulary = vocabulary

    @classmethod
    def from_str(cls, text: str) -> "Whitespace":
        return cls(json.loads(text)["model"]["vocab"])

    def encode_batch(self, texts: list[str]) -> list[SimpleNamespace]:
        return [SimpleNamespace(ids=[self.vocabulary.get(word, 1) for word in text.split()]) for text in texts]

    def no_padding(self) -> None: ...

    def enable_truncation(self, length: int) -> None:
        assert length == 4


@pytest.mark.parametrize("real", [False, True])
def test_texts_become_the_tokens_that_the_model_was_trained_on(
    real: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if real:
        pytest.importorskip("tokenizers")
    else:
        monkeypatch.setitem(sys.modules, "tokenizers", SimpleNamespace(Tokenizer=Whitespace))  # type: ignore[arg-type]
    model = saved(tmp_path)
    texts, tokens = ["no fever", "cough fever sneeze no"], np.array([[3, 2, 5, 5], [4, 2, 1, 3]])
    assert model.encode(texts).tolist() == tokens.tolist()
    assert model.predict(texts).equals(model.predict(tokens)) and len(model.predict(texts)) == 2


def test_without_a_tokenizer_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no tokenizer"):
        saved(tmp_path, tokenizer=False).predict(["no fever"])


def test_a_damaged_tokenizer_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = saved(tmp_path)
    with pytest.raises(BadInput, match="tokenizer in the model's file cannot be read"):
        replace(model, about={**model.about, "tokenizer": "{"}).predict(["no fever"])


def test_what_is_missing_to_read_texts_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(BadInput, match=r"pip install 'coterie\[transformers\]'"):
        saved(tmp_path).predict(["no fever"])
