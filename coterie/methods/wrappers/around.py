"""Wrappers as functions: around any method they fit, in whatever order they are given."""

from collections.abc import Mapping
from typing import Any

from coterie.engine.method import Method
from coterie.errors import BadInput
from coterie.methods import WRAPPERS, given
from coterie.options import keywords, parse


@keywords("with_finetuning", WRAPPERS["finetune"][0])
def with_finetuning(method: Method | str, **options: Any) -> Method:
    """A method whose model each silo trains a little on its own data before it is used."""
    return _around(method, "finetune", options, "with_finetuning")


@keywords("with_personal", WRAPPERS["personal"][0])
def with_personal(method: Method | str, **options: Any) -> Method:
    """A method of whose models some `columns` stay on the silos: the head, normalisation, or layers by name."""
    return _around(method, "personal", options, "with_personal")


@keywords("with_clipping", WRAPPERS["clip_update"][0])
def with_clipping(method: Method | str, **options: Any) -> Method:
    """A method in which no silo's upload changes a model by more than a given length."""
    return _around(method, "clip_update", options, "with_clipping")


@keywords("with_privacy", WRAPPERS["privacy"][0])
def with_privacy(method: Method | str, **options: Any) -> Method:
    """A method with differential privacy: what leaves a silo is clipped and has noise on it."""
    return _around(method, "privacy", options, "with_privacy")


@keywords("with_compression", WRAPPERS["compress"][0])
def with_compression(method: Method | str, **options: Any) -> Method:
    """A method whose uploads are smaller: the largest changes alone (`top_k`), or a byte for each number (`bits`)."""
    return _around(method, "compress", options, "with_compression")


@keywords("with_robustness", WRAPPERS["robust"][0])
def with_robustness(method: Method | str, **options: Any) -> Method:
    """A method whose server averages so that a few rogue silos cannot decide the result."""
    return _around(method, "robust", options, "with_robustness")


@keywords("with_blind", WRAPPERS["blind"][0])
def with_blind(method: Method | str, **options: Any) -> Method:
    """A method whose server computes on models that it cannot read."""
    return _around(method, "blind", options, "with_blind")


@keywords("with_secagg", WRAPPERS["secagg"][0])
def with_secagg(method: Method | str, **options: Any) -> Method:
    """A method whose server sees the sum of all uploads alone."""
    return _around(method, "secagg", options, "with_secagg")


def _around(method: Method | str, key: str, options: Mapping[str, Any], where: str) -> Method:
    """A method in one more wrapper; all are stacked in the order of a study's table, so that a study can say it."""
    inner, stacked = given(method), {key: parse(WRAPPERS[key][0], options, where)}
    while found := [each for each, (_, wrap) in WRAPPERS.items() if isinstance(inner, wrap)]:
        if found[0] == key:
            raise BadInput(f"{where}: the method has it already; give it once")
        stacked[found[0]], inner = inner.options, inner.method  # type: ignore[attr-defined]
    for each, (_, wrap) in WRAPPERS.items():
        if each in stacked:
            inner = wrap(inner, stacked[each])
    return inner
