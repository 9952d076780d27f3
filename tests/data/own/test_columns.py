"""What a column is, and how files become columns."""

import numpy as np
import pandas as pd
import pytest

from coterie.data.own import columns
from coterie.data.own.columns import as_number, as_text, kind_of
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import OwnData, ready
from coterie.data.own.tables import read_table
from coterie.errors import BadInput


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "2.5", None], "number"),
        ([1, 2, 3], "number"),
        (["1", "2", "b"], "category"),
        ([True, False, True], "category"),
        ([True, None], "category"),
        (["True", "FALSE"], "category"),
        ([None, None], "empty"),
        (["", " "], "empty"),
        (["2024-01-31", "2023-12-01"], "date"),
        (["31.12.2023", "1/2/2024"], "date"),
        (pd.to_datetime(["2024-01-31"]), "date"),
        (["2024-01-31", "soon"], "category"),
        (pd.Categorical(["a", "b"]), "category"),
    ],
)
def test_a_column_is_what_all_its_values_are(values, kind):
    assert kind_of(pd.Series(values), "x") == kind


def test_numbers_and_text_are_read_alike_from_every_type():
    assert as_number(pd.Series(["1", " 2.5 ", None]), "x").tolist()[:2] == [1.0, 2.5]
    assert np.isnan(as_number(pd.Series([1, None], dtype="Int64"), "x")[1])
    assert as_text(pd.Series([True, False, None], dtype="boolean"), "x").tolist() == ["true", "false", None]
    assert as_text(pd.Series(["TRUE", "False"]), "x").tolist() == ["true", "false"]
    assert as_text(pd.Series([1.0, 2.5]), "x").tolist() == ["1", "2.5"]
    assert as_text(pd.Series([" a ", "", None]), "x").tolist() == ["a", None, None]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["1", "two"], "'two' in row 2 is no number"),
        (["1", "inf"], "infinity in row 2"),
        (["1", "-1e300"], "1e.300 in row 2 is beyond 1e.100"),
        ([1.0, np.inf], "infinity"),
    ],
)
def test_what_is_no_number_is_named_with_its_row(values, said):
    with pytest.raises(BadInput, match=said):
        as_number(pd.Series(values), "x")


def test_lists_in_a_column_are_refused():
    with pytest.raises(BadInput, match="holds list, not numbers or text"):
        kind_of(pd.Series([[1], [2]]), "x")


def test_csv_and_parquet_hold_the_same_table(tmp_path):
    frame = pd.DataFrame({"age": [61.5, None], "ward": ["er", None], "smoker": [True, False]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";")
    frame.to_parquet(tmp_path / "c.parquet")
    for name in ("a.csv", "b.csv", "c.parquet"):
        read = read_table(tmp_path / name)
        assert [kind_of(read[c], c) for c in ("age", "ward", "smoker")] == ["number", "category", "category"], name
        assert as_number(read["age"], "age")[0] == 61.5 and as_text(read["ward"], "w").tolist() == ["er", None]
        assert as_text(read["smoker"], "smoker").tolist() == ["true", "false"]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.csv", b"", "has no name|not a CSV table"),
        ("a.csv", b"a,b\n", "has no rows"),
        ("a.csv", b"a,a\n1,2\n", "two columns are called 'a'"),
        ("a.csv", b"a,\n1,2\n", "column 2 has no name"),
        ("a.csv", b"a,b\n1,2,3\n", "not a CSV table"),
        ("a.csv", b"a,b\n1\n", "not a CSV table"),
        ("a.csv", b"a\xff,b\n1,2\n", "not text in UTF-8"),
        ("a.csv", b"a,b\n\xff\xfe,2\n", "in UTF-8"),
        ("a.parquet", b"PAR1 nothing PAR1", "damaged or not a Parquet file"),
        ("a.parquet", b"", "damaged or not a Parquet file"),
    ],
)
def test_damaged_tables_are_refused_in_a_sentence(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=said):
        read_table(tmp_path / name)


def test_no_number_becomes_text_and_text_is_parsed_by_level(monkeypatch):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=200).round(3).astype(str), "b": rng.normal(size=200)})
    frame["ward"], frame["y"] = rng.choice([" er", "icu "], 200), rng.choice(["ill", "well"], 200)
    looked_at = []
    monkeypatch.setattr(columns, "number_name", lambda value: pytest.fail("a number as text"))
    monkeypatch.setattr(
        columns, "numbers_in", lambda text: looked_at.append(len(text)) or pd.Series(np.nan, text.index)
    )
    holding = from_frame("a", frame, "y", (), "a")
    data = ready([holding], OwnData(label="y"), 0)
    assert max(looked_at) == 2  # levels, not rows
    ward = next(column for column in data.schemas["a"].columns if column.name == "ward")
    assert ward.levels == ("er", "icu") and as_text(frame["ward"], "x").tolist() == frame["ward"].str.strip().tolist()


def test_a_columns_name_may_go_over_two_lines(tmp_path):
    frame = pd.DataFrame({"dose\nin mg": [1.5, 2.5], 'a "b", c': ["x", "y\nz"]})
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert read_table(tmp_path / "a.csv").astype({"dose\nin mg": float}).equals(frame)
