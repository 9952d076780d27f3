"""Arrays as models take them."""

import warnings
from pathlib import Path

import numpy as np
import pytest

from coterie.data.arrays import model_inputs
from coterie.errors import BadInput


def test_numbers_that_float32_cannot_hold_are_refused_in_a_line():
    assert model_inputs(np.array([[1e38]]), Path("a.npz")).dtype == np.float32
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(BadInput, match=r"a\.npz: inputs are beyond what float32 holds"):
            model_inputs(np.array([[1e39]]), Path("a.npz"))
