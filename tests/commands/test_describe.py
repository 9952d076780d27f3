"""The pages about methods and data sets, as a terminal of 80 columns shows them."""

import io
import re
import tomllib

import pytest
from rich.console import Console

from coterie.commands.describe import as_written, data_page, data_table, method_page
from coterie.data import catalog
from coterie.errors import BadInput
from coterie.methods import METHODS, make
from coterie.methods.parts.schedules import StepDecay
from coterie.options import describe, resolved

CUT = r"\S…"  # what is left of a word that did not fit


def printed(page, *about, width=80):
    out = io.StringIO()
    page(*about, Console(file=out, width=width))
    return out.getvalue()


def words(text):
    return " ".join(text.split())


@pytest.mark.parametrize("name", METHODS)
def test_a_page_of_a_method_is_whole(name):
    kind = METHODS[name]
    page = printed(method_page, name, kind)
    assert not re.search(CUT, page) and max(map(len, page.splitlines())) <= 80
    assert kind.summary in words(page) and kind.paper in words(page)
    first = {line.split(" ")[0] for line in page.splitlines()}
    assert {option.name for option in describe(kind)} <= first
    for title in ("Leaves the silo", "Is sent to the silo", "Never leaves the silo"):
        assert f"\n{title}\n" in page


def test_what_leaves_the_silo_says_who_sees_it():
    page = words(printed(method_page, "fedamp", METHODS["fedamp"]))
    assert "Leaves the silo w d the silo's personal model w_i (seen by: server; other silos only in a mixture)" in page
    assert "Leaves the silo nothing" in words(printed(method_page, "separate", METHODS["separate"]))


def test_an_option_has_its_default_and_its_range():
    page = words(printed(method_page, "fedamp", METHODS["fedamp"], width=200))
    assert "tau 0.5 τ, the weight on the others (attention) · number, range [0, 1]" in page
    assert '"tamed-root"' in page
    assert "{start = 10000, factor = β_k; 1/β is the strength of the pull · number or table" in page


def test_a_method_without_options_says_so():
    assert "\nnone" in printed(method_page, "fedavg", METHODS["fedavg"])


@pytest.mark.parametrize("name", METHODS)
def test_a_default_can_be_copied_into_a_study(name):
    copied = {
        option.name: tomllib.loads(f"it = {as_written(option.default)}")["it"]
        for option in describe(METHODS[name])
        if option.default is not None
    }
    assert make(name, copied) == make(name, {})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "-"), (True, "true"), (1.0, "1"), (0.5, "0.5"), (1e300, "1e+300"), (float("inf"), "inf"),
        ("auto", '"auto"'), ("", '""'), ((1, 2.0), "[1, 2]"),
        (StepDecay(1e4), "{start = 10000, factor = 0.1, every = 30, floor = 0}"),
    ],
)  # fmt: skip
def test_a_default_reads_like_a_study_file(value, shown):
    assert as_written(value) == shown


@pytest.mark.parametrize("name", catalog.CATALOG)
def test_a_page_of_a_data_set_has_the_defaults_of_that_set(name):
    page = printed(data_page, name)
    assert not re.search(CUT, page)
    rows = {line.split()[0]: line for line in page.splitlines() if line and not line.startswith(" ")}
    for key, value in catalog.resolved(name, {}).items():
        if key not in ("name", "split"):
            assert as_written(value)[:12] in rows[key]


def test_the_page_of_a_data_set_names_the_other_splits():
    page = words(printed(data_page, "digits"))
    assert (
        'split = "groups" (or iid, pathological, shards, dirichlet, pachinko, natural: each with options of its own)'
        in page
    )
    assert "split =" not in printed(data_page, "synthetic")


def test_a_data_set_whose_label_is_a_number_has_no_classes():
    lines = {line.split(" ")[0]: line for line in printed(data_table, width=200).splitlines()}
    assert re.search(r"7,185 +- ", lines["schools"]) and re.search(r"1,070 +2 ", lines["store"])


def test_an_unknown_data_set_is_refused():
    with pytest.raises(BadInput, match="unknown data set 'digit'; did you mean 'digits'"):
        printed(data_page, "digit")


def test_the_list_of_data_sets_has_them_all():
    page = printed(data_table)
    assert set(catalog.CATALOG) <= {line.split(" ")[0] for line in page.splitlines()}
    assert "1,797" in page and not re.search(CUT, page)


def test_resolved_defaults_and_described_ones_are_the_same():
    for name, kind in METHODS.items():
        told = {option.name: option.default for option in describe(kind) if option.default is not None}
        table = resolved(make(name, {}))
        assert told.keys() == table.keys()
