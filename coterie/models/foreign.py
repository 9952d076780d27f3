"""Models of timm and transformers, where these are installed: `--model timm:NAME` and `--model hf:FOLDER`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from coterie.errors import BadInput, first_line, nearest

Make = Callable[[Any, int], nn.Module]  # from the shape of a sample and the number of outputs


def timm_model(name: str) -> Make:
    """A network for images, by timm's name; its weights are `[model] weights`."""
    try:
        import timm  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise BadInput(f"--model timm:{name}: needs timm; pip install 'coterie[timm]'") from None
    if name not in (known := timm.list_models()):
        raise BadInput(f"--model timm:{name}: timm has no such model; {nearest(name, known)}")

    def make(shape: Any, outputs: int) -> nn.Module:
        made: nn.Module = timm.create_model(name, pretrained=False, num_classes=outputs, in_chans=shape[0])
        return made

    return make


def hf_model(path: str) -> Make:
    """A classifier of sequences of tokens, in a folder that `save_pretrained` wrote; nothing is downloaded."""
    try:
        from transformers import AutoModelForSequenceClassification  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise BadInput(f"--model hf:{path}: needs transformers; pip install 'coterie[transformers]'") from None
    if not Path(path).is_dir():
        raise BadInput(f"--model hf:{path}: no such folder; give one that save_pretrained wrote")

    def make(_: Any, outputs: int) -> nn.Module:
        how = {"num_labels": outputs, "ignore_mismatched_sizes": True, "local_files_only": True}
        try:
            # The others drop at random in ways that cannot be keyed, or cannot run over rows.
            made = AutoModelForSequenceClassification.from_pretrained(path, attn_implementation="eager", **how)
        except (OSError, ValueError) as error:
            raise BadInput(f"--model hf:{path}: cannot be loaded ({first_line(error)})") from None
        made.__class__ = type(type(made).__name__, (Sequences, type(made)), {})
        return made  # type: ignore[no-any-return]

    return make


def tokenizer_of(name: object) -> dict[str, Any]:
    """The tokenizer in the folder of a model of transformers, as its file's JSON, and the token that fills a text."""
    folder = Path(name.removeprefix("hf:")) if isinstance(name, str) and name.startswith("hf:") else None
    if folder is None or not (folder / "tokenizer.json").is_file():
        return {}
    config = json.loads((folder / "config.json").read_text("utf-8"))
    return {"tokenizer": (folder / "tokenizer.json").read_text("utf-8"), "padding": config.get("pad_token_id") or 0}


def tokens_of(texts: Sequence[str], tokenizer: str, padding: int, length: int) -> np.ndarray:
    """Texts as tokens (n, length): longer ones are cut, shorter ones filled."""
    try:
        from tokenizers import Tokenizer  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        raise BadInput("texts need tokenizers; pip install 'coterie[transformers]', or give tokens") from None
    try:
        made = Tokenizer.from_str(tokenizer)
    except Exception as error:  # the library raises nothing more particular
        raise BadInput(f"the tokenizer in the model's file cannot be read ({error}); give tokens") from None
    made.no_padding()
    made.enable_truncation(length)
    found = np.full((len(texts), length), padding, dtype=np.int64)
    for row, each in zip(found, made.encode_batch(list(texts)), strict=True):
        row[: len(each.ids)] = each.ids
    return found


class Sequences:
    """A classifier that takes tokens alone and gives scores alone; its tensors keep their names."""

    config: Any
    dtype: torch.dtype

    def forward(self, tokens: Tensor) -> Tensor:
        """tokens (b, t) -> (b, classes); the padding is not looked at."""
        padding = tokens == (self.config.pad_token_id or 0)
        lowest = torch.finfo(self.dtype).min
        mask = torch.where(padding, lowest, 0.0).to(self.dtype)[:, None, None]  # as attention adds it
        out: Tensor = super().forward(input_ids=tokens, attention_mask=mask).logits  # type: ignore[misc]
        return out
