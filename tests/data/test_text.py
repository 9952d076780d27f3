import string

import numpy as np
import pytest

from coterie.data.catalog import load
from coterie.data.text import VOCABULARY, encoded, roles, speeches
from coterie.errors import BadInput

PLAY = """First Citizen:
Before we proceed any further,
hear   me speak.

All:
Speak, speak.

A line of nobody's.

First Citizen:
You: are resolved?
"""


def test_a_role_says_all_its_speeches_in_order():
    assert speeches(PLAY) == {
        "First Citizen": "Before we proceed any further, hear me speak. You: are resolved?",
        "All": "Speak, speak.",
    }
    assert speeches(PLAY.replace("\n", "\r\n")) == speeches(PLAY)


def test_characters_are_numbered_as_printed():
    assert len(VOCABULARY) == 100
    assert "".join(VOCABULARY[i] for i in encoded(string.printable)) == string.printable
    assert [VOCABULARY[i] for i in encoded("é😀\x01")] == ["?"] * 3


def words(x):
    return ["".join(VOCABULARY[i] for i in row) for row in np.atleast_2d(x)]


def written(tmp_path, text):
    (tmp_path / "play.txt").write_text(text)
    return tmp_path / "play.txt"


def test_a_sample_is_a_window_and_the_next_character(tmp_path):
    pool = roles("play", written(tmp_path, PLAY), window=4, stride=1)
    own = pool.owner == "All"
    assert words(pool.x[own])[:3] == ["Spea", "peak", "eak,"]
    assert words(pool.y[own])[0] == "k, speak."
    assert (pool.x.dtype, pool.y.dtype, pool.classes) == (np.int64, np.int64, 100)
    assert {*pool.owner} == {"First Citizen", "All"}


@pytest.mark.parametrize(("stride", "overlap"), [(1, 4), (2, 2), (3, 1), (4, 1), (5, 0), (9, 0)])
def test_windows_overlap_as_far_as_they_say(tmp_path, stride, overlap):
    letters = string.ascii_letters + string.digits
    pool = roles("play", written(tmp_path, f"A:\n{letters}\n"), window=4, stride=stride)
    assert pool.overlap == overlap
    seen = [{*x.tolist(), y} for x, y in zip(pool.x, pool.y, strict=True)]  # every character is there once
    assert all(seen[0].isdisjoint(later) for later in seen[overlap + 1 :])
    assert overlap == 0 or not seen[0].isdisjoint(seen[overlap])


def test_silos_are_roles_and_test_on_what_is_said_last(tmp_path):
    text = "".join(
        f"{role}:\n{''.join(chr(start + (i * i) % 7) for i in range(400))}\n\n"
        for role, start in (("A", 65), ("B", 75), ("C", 85))
    )
    table = {"path": str(written(tmp_path, text)), "window": 5, "min_samples": 300}
    data = load("shakespeare", table, 0)
    assert len(data.silos) == 3
    for silo, start in zip(data.silos, (65, 75, 85), strict=True):
        for part in (silo.train, silo.validation, silo.test):
            assert part.x.shape[1:] == (5,)
            assert {ord(VOCABULARY[i]) for i in part.x.ravel()} <= {*range(start, start + 7)}
    # 395 samples: 79 to test, 5 left out, 62 of 311 to validate, 5 left out.
    assert [len(p) for p in (data.silos[0].train, data.silos[0].validation, data.silos[0].test)] == [244, 62, 79]


def test_a_random_split_of_overlapping_windows_is_refused(tmp_path):
    path = str(written(tmp_path, "A:\n" + "abc" * 40))
    with pytest.raises(BadInput, match='use split = "natural", or a stride above the window'):
        load("shakespeare", {"path": path, "window": 5, "split": "iid", "silos": 2}, 0)
    assert len(load("shakespeare", {"path": path, "window": 5, "stride": 6, "split": "iid", "silos": 2}, 0).silos) == 2


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"just prose", "no speeches; expected a role's name and a colon"),
        (b"A:\nshort", "no role has more than 80 characters"),
        (b"\xff\xfe\x00", "not text in UTF-8"),
    ],
)
def test_other_texts_are_refused(tmp_path, content, said):
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(BadInput, match=said):
        load("shakespeare", {"path": str(tmp_path / "a.txt")}, 0)


def test_a_missing_text_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"none\.txt: cannot be read"):
        load("shakespeare", {"path": str(tmp_path / "none.txt")}, 0)
