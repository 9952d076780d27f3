"""Columns of free text: words are hashed to inputs of a fixed number, and nothing of them is declared."""

import json

import numpy as np
import pandas as pd
import pytest

import coterie as co
from coterie.data.own.gather import from_dataset, from_frame
from coterie.data.own.hashed_text import WIDTH, hashed
from coterie.data.own.ready import OwnData, ready, split
from coterie.data.own.schema import Schema
from coterie.data.own.statistics import declare, description_of
from coterie.deploy.own import Raw, SiloSource
from coterie.errors import BadInput

NAMES = ("a", "b", "c")


def table(place, rows=90):
    rng = np.random.default_rng(place)
    ill = rng.random(rows) < 0.5
    note = [
        f"Patient {i} {'reports a strong cough' if each else 'feels well'}, seen in room {rng.integers(99)}."
        for i, each in enumerate(ill)
    ]
    return pd.DataFrame({"note": note, "dose": rng.normal(size=rows), "y": np.where(ill, "ill", "well")})


def made(change=lambda name, frame: frame, text=("note",), **options):
    holdings = [from_frame(name, change(name, table(place)), "y", (), name) for place, name in enumerate(NAMES)]
    return ready(holdings, OwnData(label="y", text=text, **options), 0)


def rows(values):
    into = np.zeros((len(values), WIDTH), np.float32)
    hashed(pd.Series(values, dtype=object), into)
    return into


def test_words_and_pairs_of_words_are_hashed_alike_everywhere():
    x = rows(["A strong cough", "a  STRONG, cough!", "cough a strong", None, "?"])
    assert np.array_equal(x[0], x[1]) and not np.array_equal(x[0], x[2])  # pairs keep the order
    assert np.linalg.norm(x, axis=1) == pytest.approx([1, 1, 1, 0, 0])
    assert np.count_nonzero(x[0]) == 5 and WIDTH == 256
    known = rows(["123456789"])[0]  # whose CRC-32 is 0xCBF43926 by definition: in every process
    assert np.flatnonzero(known).tolist() == [0x26] and known[0x26] == -1


def test_a_column_is_free_text_where_it_is_given_as_such():
    with pytest.raises(BadInput, match=r"look like an identifier or free text.*--text note"):
        made(text=())
    data = made()
    note = data.schemas["a"].columns[1]
    assert (note.name, note.kind, note.width) == ("note", "text", WIDTH)
    assert data.silos[0].train.x.shape[1] == 1 + WIDTH and not data.differences
    assert Schema.read(data.schemas["a"].as_table(), "x") == data.schemas["a"]


def test_text_may_look_like_numbers_or_dates_here_and_there():
    data = made(lambda name, f: f.assign(note="2024-01-31" if name == "a" else "17" if name == "b" else None))
    assert [np.count_nonzero(silo.train.x[0, 1:]) > 0 for silo in data.silos] == [True, True, False]


def test_nothing_of_the_text_is_declared():
    frame = table(0)
    own = split(from_frame("a", frame, "y", (), "a"), OwnData(label="y", text=("note",)), 0)
    told = declare(own.holding.x, own.label, own.train, "auto", True, "", text=("note",))
    assert description_of(told).texts == ("note",)
    assert "cough" not in json.dumps(told.table.numpy().tobytes().decode()) and told.count.shape == (1, 1)


def test_a_text_column_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(BadInput, match="--text nota: silo 'a' has no such column; did you mean 'note'"):
        made(text=("nota",))
    table(0).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(BadInput, match="--text nota"):  # before it connects
        Raw("a", SiloSource(tmp_path / "a.csv", "y", text=("nota",)))
    with pytest.raises(BadInput, match="--text note: silo 'a' holds arrays"):
        ready([from_dataset("a", (np.zeros((20, 2)), np.arange(20) % 2))], OwnData(text=("note",)), 0)


def test_every_silo_must_have_the_column():
    with pytest.raises(BadInput, match="--text note: silo 'b' has no such column"):
        made(lambda name, f: f.drop(columns="note") if name == "b" else f)


def test_a_model_learns_from_text_and_predicts_with_the_same_words():
    frames = {name: table(place) for place, name in enumerate(NAMES)}
    fed = co.Federation(co.silos(frames, label="y", text=["note"]), model="linear", rows="all")
    model = fed.train("fedavg", rounds=20, lr=0.5, quiet=True)["b"]
    new = pd.DataFrame({"note": ["a strong cough", "feels well"], "dose": [0.0, 0.0]})
    assert model.predict(new)["prediction"].tolist() == ["ill", "well"]
