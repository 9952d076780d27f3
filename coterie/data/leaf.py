"""LEAF's JSON files (Caldas et al. 2018): what each user holds."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from coterie.data.archives import Member, bounded
from coterie.data.silo import LONGEST_NAME, Array
from coterie.errors import BadInput

SIDE = 28
LARGEST = 2 << 30  # bytes of one file


def read_leaf(files: Sequence[Member]) -> dict[str, Array]:
    """FEMNIST as arrays x (n, 1, 28, 28), y (n,) and owner (n,): its train and test files together."""
    x: list[Array] = []
    y: list[Array] = []
    owner: list[str] = []
    for file in files:
        for user, held in _users(file).items():
            if len(user) > LONGEST_NAME:
                raise BadInput(f"{file.name}: a user's name has {len(user)} characters; {LONGEST_NAME} are allowed")
            images, labels = _held(held, f"{file.name} {user}")
            x.append(images)
            y.append(labels)
            owner += [user] * len(labels)
    if not owner:
        raise BadInput(f"{files[0].name}: lists no users; make LEAF's files again")
    pixels = np.concatenate(x)
    whole = np.rint(pixels * 255)
    # They were bytes before LEAF divided them by 255, and a byte takes a quarter of the room.
    if pixels.min() >= 0 and pixels.max() <= 1 and np.allclose(whole, pixels * 255, rtol=0, atol=0.01):
        pixels = whole.astype(np.uint8)
    return {"x": pixels.reshape(-1, 1, SIDE, SIDE), "y": np.concatenate(y), "owner": np.array(owner)}


def _users(file: Member) -> dict[str, Any]:
    try:
        with file.open() as raw:
            users = json.loads(bounded(raw, LARGEST, str(file.name)))["user_data"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadInput(f"{file.name}: not a file of LEAF's with user_data ({error}); make it again") from None
    if not isinstance(users, dict):
        raise BadInput(f"{file.name}: user_data is no table of users; make it again")
    return users


def _held(held: Any, where: str) -> tuple[Array, Array]:
    try:
        x, y = np.asarray(held["x"], np.float32), np.asarray(held["y"])
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise BadInput(f"{where}: x and y are not numbers of one length ({error}); make LEAF's files again") from None
    if y.ndim != 1 or x.shape != (len(y), SIDE * SIDE) or not np.issubdtype(y.dtype, np.integer):
        raise BadInput(f"{where}: x is {x.shape} and y {y.shape}; expected {SIDE * SIDE} numbers and a label a sample")
    return x, y.astype(np.int64)
