"""The ordinary mess of tables is remarked on from what silos declare, all of it at once."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.own.agree import SchemaDiffers
from coterie.data.own.gather import from_frame, gather
from coterie.data.own.ready import OwnData, ready
from coterie.errors import BadInput

NAMES = ("a", "b", "c", "d")


def table(place, rows=120):
    rng = np.random.default_rng(place)
    frame = pd.DataFrame(
        {
            "temperature": rng.normal(37 + 0.1 * place, 0.7, rows),
            "weight": rng.normal(75 + 2 * place, 14, rows),
            "dose": rng.lognormal(0, 0.6, rows),
            "visits": rng.integers(0, 30, rows),
            "sex": rng.choice(["M", "F"], rows),
            "smoker": rng.choice(["Yes", "No"], rows),
        }
    )
    risk = frame["temperature"] - 37 + (frame["sex"] == "M") + rng.normal(0, 1, rows)
    return frame.assign(y=np.where(risk > 0.5, "ill", "well"))


def made(change=lambda name, frame: frame, **options):
    frames = {name: change(name, table(place)) for place, name in enumerate(NAMES)}
    holdings = [from_frame(name, frame, "y", (), name) for name, frame in frames.items()]
    return ready(holdings, OwnData(label="y", **options), 0)


def remarks(change=lambda name, frame: frame, **options):
    return [(d.column, d.silo, d.what) for d in made(change, **options).differences]


def only(name, **columns):
    """In one silo, columns made of its own."""

    def change(silo, frame):
        return frame.assign(**{key: make(frame) for key, make in columns.items()}) if silo == name else frame

    return change


def test_tidy_tables_are_without_remarks():
    assert remarks() == []


def test_another_unit_of_a_silo_is_remarked_on():
    found = remarks(only("c", temperature=lambda f: 1.8 * f["temperature"] + 32, weight=lambda f: 2.2046 * f["weight"]))
    assert [(column, silo) for column, silo, _ in found] == [("temperature", "c"), ("weight", "c")]
    assert all("another unit" in what for _, _, what in found) and "Fahrenheit" in found[0][2]
    (found,) = remarks(only("b", dose=lambda f: 1000 * f["dose"]))
    assert found[:2] == ("dose", "b") and "1000 times" in found[2]
    assert remarks(only("b", dose=lambda f: 1000 * f["dose"]), standardize="silo") == []  # no moments left it


def test_silos_that_differ_in_kind_are_in_the_same_unit():
    found = remarks(only("c", weight=lambda f: f["weight"] + 15, temperature=lambda f: f["temperature"] * 1.01))
    assert found == []


def test_silos_that_all_differ_are_no_sign_of_a_unit():
    means = {"a": 412, "b": 620, "c": 851, "d": 1500}
    found = remarks(lambda name, f: f.assign(area=means[name] * (1 + (f["weight"] - f["weight"].mean()) / 70)))
    assert not [what for *_, what in found if "unit" in what]


def test_levels_that_differ_in_spelling_alone_are_remarked_on():
    found = remarks(only("d", smoker=lambda f: f["smoker"].str.upper() + " "))
    about = [each for each in found if "spelling" in each[2]]
    assert [each[:2] for each in about] == [("smoker", "d"), ("smoker", "d")]
    assert "'YES'" in about[1][2] and "'Yes'" in about[1][2] and "alike" in about[1][2]


def test_an_abbreviation_is_guessed_in_columns_of_two_levels():
    found = remarks(only("d", sex=lambda f: f["sex"].map({"M": "male", "F": "female"})))
    about = [what for column, silo, what in found if (column, silo) == ("sex", "d") and "spelling" in what]
    assert len(about) == 2 and "'male'" in about[1] and "'M'" in about[1]
    three = lambda f: f["sex"].map({"M": "mild", "F": "fair"}).where(f.index > 9, "grave")  # noqa: E731
    assert not [what for *_, what in remarks(only("d", sex=three)) if "spelling" in what]


def test_two_spellings_of_a_class_stop_the_run():
    with pytest.raises(SchemaDiffers, match=r"'y' of c: class 'Ill' and .*'ill'.*; .*'y' of c: class 'WELL'") as caught:
        made(only("c", y=lambda f: f["y"].map({"ill": "Ill", "well": "WELL"}), visits=lambda f: 1000.0 * f["visits"]))
    assert any("another unit" in each.what for each in caught.value.differences)  # all at once


@pytest.mark.parametrize(
    "codes",
    [{"d": {"ill": "I", "well": "W"}}, {"b": {"ill": "Ill", "well": "Well"}, "d": {"ill": "I", "well": "W"}}],
    ids=["letters", "letters and another case"],
)
def test_classes_that_nobody_shares_stop_the_run(codes):
    with pytest.raises(SchemaDiffers, match=r"'y' of d: class 'W' and elsewhere 'well': two spellings of one\?"):
        made(lambda name, f: f.assign(y=f["y"].map(codes[name])) if name in codes else f)


def test_a_class_and_its_first_letter_in_one_silo_are_two():
    found = remarks(lambda name, f: f.assign(y=np.where(f.index % 2, f["y"], f["y"].str[0])))
    assert not [what for column, _, what in found if column == "y"]


def test_a_label_in_another_unit_is_remarked_on():
    cost = lambda name, f: f.assign(y=(1000 if name == "c" else 1) * (80 + f["weight"] + f["dose"]))  # noqa: E731
    assert [(silo, "another unit, 1000 times?" in what) for column, silo, what in remarks(cost) if column == "y"] == [
        ("c", True)
    ]


def test_numbers_with_grouped_digits_are_told_from_free_text(tmp_path):
    with pytest.raises(BadInput, match=r"column 'dose': '.*' looks like a number whose digits are grouped"):
        made(lambda name, f: f.assign(dose=(1000 * f["dose"] + 1000).map("{:,.2f}".format)))


def test_letters_and_signed_numbers_are_classes_of_their_own():
    letters = made(lambda name, f: f.assign(y=np.where(f["y"] == "ill", "a", "A")))
    assert letters.schemas["a"].classes == ("A", "a")
    signed = made(lambda name, f: f.assign(y=np.where(f["y"] == "ill", -1, 1)))
    assert signed.schemas["a"].classes == ("-1", "1") and not signed.differences


@pytest.mark.parametrize(
    "number",
    [
        lambda f, place: 5000 + 7 * np.arange(len(f)),
        lambda f, place: np.random.default_rng(place).permutation(len(f)) + 1,
        lambda f, place: np.random.default_rng(place).permutation(900_000)[: len(f)] + 100_000,
    ],
    ids=["increasing", "dense", "of one length"],
)
def test_numbers_that_look_like_an_identifier(number):
    found = remarks(lambda name, f: f.assign(patient=number(f, NAMES.index(name))))
    assert [each[:2] for each in found] == [("patient", "every silo")] and "--drop patient" in found[0][2]
    assert not remarks(only("a", visits=lambda f: number(f, 0) % 30))  # elsewhere it is none


def test_a_column_that_repeats_another_is_remarked_on():
    code = {"Yes": "1-yes", "No": "0-no"}
    found = remarks(lambda name, f: f.assign(kg=f["weight"], smokes=f["smoker"].map(code)))
    assert {each[:2] for each in found} == {("kg", "every silo"), ("smokes", "every silo")}
    assert "as in 'weight'" in found[0][2] and "--drop kg" in found[0][2]
    assert not remarks(lambda name, f: f.assign(kg=f["weight"] + 1e-6 * (name == "a")))


def test_a_column_that_tells_the_label_by_itself_is_remarked_on():
    def leaking(name, frame):
        ill = frame["y"] == "ill"
        ward, cost = np.where(ill, "icu", "home"), np.where(ill, 500.0, 100.0) + frame["dose"]
        return frame.assign(ward=ward, cost=cost, unlike=ward if name == "b" else frame["sex"])

    assert {d.column for d in made(leaking).differences if d.flatters} == {"ward", "cost", "unlike"}
    found = {column: (silo, what) for column, silo, what in remarks(leaking) if "tells the label" in what}
    assert found.keys() == {"ward", "cost", "unlike"} and found["unlike"][0] == "b"
    assert found["cost"][0] == "every silo" and "--drop cost" in found["cost"][1]
    label = lambda name, f: f.assign(y=3 * f["weight"] + 1e-4 * f["dose"])  # noqa: E731
    assert [each[0] for each in remarks(label) if "tells the label" in each[2]] == ["weight"]


def test_few_rows_and_rows_sorted_by_label_tell_nothing():
    few = remarks(lambda name, f: f.head(16).assign(y=["ill"] * 3 + ["well"] * 13, dose=np.arange(16.0)))
    assert not [what for *_, what in few if "tells" in what or "identifier" in what]
    ordered = remarks(lambda name, f: f.sort_values("y").assign(dose=1.0, visits=2 * (name == "a")))
    assert not [what for *_, what in ordered if "tells" in what]


def test_decimal_commas_are_numbers_where_the_whole_column_is(tmp_path):
    for place, name in enumerate(NAMES):
        frame = table(place).assign(code=["1,5", "x"] * 60)
        frame.to_csv(tmp_path / f"{name}.csv", index=False, sep=";", decimal=",")
    data = ready(gather(tmp_path, "y"), OwnData(label="y"), 0)
    kinds = {column.name: column.kind for column in data.schemas["a"].columns}
    assert kinds["temperature"] == kinds["dose"] == "number" and kinds["code"] == "category"
    expected = made().schemas["a"].columns[0]
    assert data.schemas["a"].columns[0].mean == pytest.approx(expected.mean)
    for name in NAMES:  # commas that separate columns separate no decimals
        (tmp_path / f"{name}.csv").write_text("a,y\n" + '"1,234",u\n"2,345",v\n' * 20)
    kinds = {c.name: c.kind for c in ready(gather(tmp_path, "y"), OwnData(label="y"), 0).schemas["a"].columns}
    assert kinds == {"a": "category"}


def test_all_that_a_silo_cannot_use_is_listed_at_once():
    with pytest.raises(Exception, match=r"column 'name': .* identifier .*; .*column 'note': .* identifier"):
        made(lambda name, f: f.assign(name=[f"n{i}" for i in f.index], note=[f"x{i}" for i in f.index]))
