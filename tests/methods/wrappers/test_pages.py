"""What a method's page says of wrappers is what they do."""

import re
from pathlib import Path

import pytest
import torch
from torch import nn

from coterie.engine.method import Roster
from coterie.engine.rows import Model
from coterie.errors import BadInput
from coterie.methods import WRAPPERS, make

PAGES = [page for page in Path("docs/methods").glob("*.md") if "## With wrappers" in page.read_text("utf-8")]
OPTIONS = {"personal": {"columns": ["0.bias"]}, "compress": {"bits": 8}}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_wrappers_fit_or_refuse_as_the_page_says(page: Path) -> None:
    said = page.read_text("utf-8").partition("## With wrappers")[2]
    fit = re.search(r"^Fit: (.*?)\.(?: Refused: (.*?)\.)?(?: |$)", said, re.M)
    assert fit, "the section begins with what fits"
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for name in [*WRAPPERS, "stack"]:
        found[_fits(page.stem, name)].add(name)
    assert [{*re.findall("`(.*?)`", each or "")} for each in fit.groups()] == [found[True], found[False]]


def _fits(method: str, wrapper: str) -> bool:
    model = Model(nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 3)), 3)
    model.probe(torch.randn(4, 5))
    counts = torch.tensor([8, 9, 7])
    try:
        table = (
            ("stack", {"of": ["fedavg", method]})
            if wrapper == "stack"
            else (method, {wrapper: OPTIONS.get(wrapper, {})})
        )
        return make(*table).refusal(Roster(("north", "south", "east"), counts, counts, 0), model) is None
    except BadInput:
        return False
