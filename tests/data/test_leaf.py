import io
import json
from contextlib import nullcontext
from pathlib import PurePosixPath

import numpy as np
import pytest

from coterie.data.archives import Member
from coterie.data.leaf import read_leaf
from coterie.errors import BadInput


def member(content):
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return Member(PurePosixPath("all_data_0.json"), len(data), lambda: nullcontext(io.BytesIO(data)))


def users(**held):
    return {"users": list(held), "num_samples": [], "user_data": held}


def test_pixels_that_were_bytes_are_bytes_again():
    image = np.arange(784) % 256
    made = read_leaf([member(users(ann={"x": [(image / 255).tolist()], "y": [3]}))])
    assert made["x"].dtype == np.uint8
    assert made["x"].reshape(-1).tolist() == image.tolist()


def test_other_numbers_stay_as_they_are():
    made = read_leaf([member(users(ann={"x": [[0.5005] * 784, [-1.0] * 784], "y": [3, 4]}))])
    assert made["x"].dtype == np.float32
    assert made["x"].min() == -1


def test_users_of_several_files_are_put_together():
    one = {"x": [[0.0] * 784], "y": [1]}
    made = read_leaf([member(users(ann=one, bob=one)), member(users(ann=one))])
    assert made["owner"].tolist() == ["ann", "bob", "ann"]
    assert made["y"].tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "not a file of LEAF's with user_data"),
        ([1], "not a file of LEAF's with user_data"),
        ({"users": []}, "not a file of LEAF's with user_data"),
        ({"user_data": 3}, "user_data is no table of users"),
        (users(), "lists no users"),
        (users(ann={"x": [[0.0] * 784]}), "ann: x and y are not numbers"),
        (users(ann={"x": [[0.0] * 784, [0.0]], "y": [1, 2]}), "ann: x and y are not numbers"),
        (users(ann={"x": [[0.0] * 9], "y": [1]}), r"ann: x is \(1, 9\) and y \(1,\)"),
        (users(ann={"x": [[0.0] * 784], "y": [1, 2]}), r"ann: x is \(1, 784\) and y \(2,\)"),
        (users(ann={"x": [[0.0] * 784], "y": [0.5]}), "expected 784 numbers and a label"),
    ],
)
def test_other_files_are_refused(content, said):
    with pytest.raises(BadInput, match=said):
        read_leaf([member(content)])
