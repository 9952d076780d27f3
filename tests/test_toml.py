"""What is written as TOML is read back the same."""

import math
import tomllib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from coterie import toml

TEXT = st.text(st.characters(codec="utf-8"))
PLAIN = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | TEXT
VALUES = st.recursive(PLAIN, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4))
TABLES = st.dictionaries(TEXT, VALUES, max_size=5)


def same(a, b):
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    return a == b


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)  # which a busy machine is
@given(TABLES)
def test_any_table_comes_back(table):
    assert same(tomllib.loads(toml.dumps(table)), table)


@pytest.mark.parametrize(
    "value",
    [
        'say "no"\\', "two\nlines\r\n\ttabbed", "Zürich 🏥 \x00 \x7f \x85 \u2028", "'''", '"""', "#", "",
        math.inf, -math.inf, math.nan, 1e300, 5e-324, -0.0, 1e16, 0.1, -(2**63), True, [], {}, [[1], ["a", 2.5]],
    ],
)  # fmt: skip
def test_an_odd_value_comes_back(value):
    assert same(tomllib.loads(toml.dumps({"key": value})), {"key": value})
    assert same(tomllib.loads(f"key = {toml.value(value)}"), {"key": value})


@pytest.mark.parametrize("key", ["", "a.b", "a b", "é", "🏥", '"', "\n", "\x7f", "#", "fedavg-ft", "1", "[x]", "="])
def test_an_odd_key_comes_back_at_every_depth(key):
    table = {key: {key: {key: {key: 1}}, "plain": 2}}
    assert tomllib.loads(toml.dumps(table)) == table


def test_it_reads_as_a_person_writes_it():
    table = {
        "methods": {"separate": {}, "fedamp": {"tau": 0.75, "beta": {"start": 1e4, "every": 30}}},
        "name": "digits",
        "seeds": [0, 1],
        "nothing": None,
    }
    assert toml.dumps(table) == (
        'name = "digits"\nseeds = [0, 1]\n\n[methods.separate]\n\n'
        "[methods.fedamp]\ntau = 0.75\nbeta = {start = 10000.0, every = 30}\n"
    )


def test_numpy_numbers_are_numbers():
    assert toml.value(np.float64(0.5)) == "0.5"
