"""Pictures with labels: a folder for each class, or a table of labels beside them."""

import csv
import io
import struct
import warnings
import zlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.archives import Member, bounded
from coterie.data.silo import LONGEST_NAME, Array
from coterie.errors import BadInput

SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".pgm", ".ppm"}
TABLE = "labels.csv"
LARGEST = 8 << 30  # bytes, all pictures together
PIXELS = 1 << 24  # of one picture
LARGEST_TABLE = 1 << 28  # bytes
FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM")  # and none, like EPS, that another program would run
DAMAGED = (
    OSError, ValueError, SyntaxError, EOFError, TypeError, KeyError, IndexError, OverflowError, RuntimeError,
    struct.error, zlib.error,
)  # fmt: skip


def read_images(found: Sequence[Member], channels: int | None, path: Path) -> dict[str, Array]:
    """Arrays x (n, H, W, C) of bytes and y (n,), and `coarse` and `owner` where a table has them.

    The label is in the column `label` of labels.csv, beside `file`, or else the name of a picture's folder. Names of
    classes are numbers, or are numbered in the order of the alphabet.
    """
    x, rows = read_pictures(found, channels, path)
    made = {"y": _numbered([row["label"] for row in rows])}
    if all("coarse" in row for row in rows):
        made["coarse"] = _numbered([row["coarse"] for row in rows])
    if all("owner" in row for row in rows):
        made["owner"] = np.array([row["owner"] for row in rows])
    return {"x": x, **made}


def read_pictures(
    found: Sequence[Member], channels: int | None, path: Path, resize: int = 0
) -> tuple[Array, list[dict[str, str]]]:
    """Pictures (n, H, W, C) of bytes, and of each what is known: its `file`, its `label` by name, maybe more."""
    pictures = {str(member.name): member for member in found if member.name.suffix.lower() in SUFFIXES}
    tables = [member for member in found if member.name.name == TABLE]
    if len(tables) > 1:
        raise BadInput(f"{path}: holds {len(tables)} files {TABLE}; give a folder with one")
    rows = _from_table(tables[0], pictures, path) if tables else _from_folders(pictures, path)
    if not rows:
        raise BadInput(f"{path}: {TABLE} lists no pictures; give it one line for each")
    place = {str(member.name): i for i, member in enumerate(found)}
    order = sorted(range(len(rows)), key=lambda i: place[rows[i]["file"]])  # as an archive has them: it unpacks once
    x = _pixels([pictures[rows[i]["file"]] for i in order], channels, path, resize)
    return x[np.argsort(order)], rows


def read_unlabelled(found: Sequence[Member], path: Path, resize: int = 0) -> tuple[list[str], Array]:
    """The names of pictures and the pictures (n, H, W, C) of bytes, whatever they show."""
    pictures = [member for member in found if member.name.suffix.lower() in SUFFIXES]
    if not pictures:
        raise BadInput(f"{path}: holds no pictures; check the path")
    return [str(picture.name) for picture in pictures], _pixels(pictures, None, path, resize)


def _from_folders(pictures: dict[str, Member], path: Path) -> list[dict[str, str]]:
    """`…/train/CLASS/picture`: training pictures first, then by name."""
    order = sorted(pictures, key=lambda name: ("train" not in pictures[name].name.parts, name))
    loose = [name for name in order if len(pictures[name].name.parts) < 2]
    if loose:
        raise BadInput(f"{path}: {loose[0]} has no label; put it into a folder of its class, or write a {TABLE}")
    return [{"file": name, "label": pictures[name].name.parent.name} for name in order]


def _from_table(table: Member, pictures: dict[str, Member], path: Path) -> list[dict[str, str]]:
    with table.open() as raw:
        try:
            text = bounded(raw, LARGEST_TABLE, f"{path} {TABLE}").decode("utf-8-sig")
            rows = list(csv.DictReader(io.StringIO(text)))
        except (UnicodeDecodeError, csv.Error) as error:
            raise BadInput(f"{path} {TABLE}: not a table in UTF-8 ({error}); write it again") from None
    if rows and not {"file", "label"} <= rows[0].keys():
        raise BadInput(f"{path} {TABLE}: columns are {', '.join(map(str, rows[0]))}; name two of them file and label")
    for line, row in enumerate(rows, 2):
        if None in row or None in row.values():
            raise BadInput(f"{path} {TABLE} line {line}: not as many values as columns; correct it")
        if len(row.get("owner", "")) > LONGEST_NAME:
            raise BadInput(f"{path} {TABLE} line {line}: an owner's name has more than {LONGEST_NAME} characters")
        row["file"] = str(table.name.parent / row["file"])
        if row["file"] not in pictures:
            raise BadInput(f"{path} {TABLE} line {line}: {row['file']} is not there; correct it")
    return rows


def _numbered(names: Sequence[str]) -> Array:
    """Classes as numbers: those they are, or their places in the alphabet."""
    if all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return np.array([int(name) for name in names], np.int64)
    return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _pixels(pictures: Sequence[Member], channels: int | None, path: Path, resize: int) -> Array:
    """(n, H, W, C) of bytes; `resize`: to so many pixels in height and width, 0: as they are."""
    image = _pillow()
    arrays: list[Array] = []
    total = 0
    for picture in pictures:
        with picture.open() as raw:
            try:
                with warnings.catch_warnings(action="ignore"), image.open(raw, formats=FORMATS) as opened:
                    if opened.width * opened.height > PIXELS:
                        raise BadInput(f"{path} {picture.name}: {opened.width}×{opened.height} is too large")
                    kind = {1: "L", 3: "RGB"}.get(channels or len(opened.getbands()), "RGB")
                    plain = opened.convert(kind)
                    array = np.asarray(plain.resize((resize, resize), image.Resampling.BILINEAR) if resize else plain)
            except (*DAMAGED, image.DecompressionBombError) as error:
                raise BadInput(f"{path} {picture.name}: not a picture ({error}); remove or replace it") from None
        array = array[:, :, None] if array.ndim == 2 else array
        if arrays and array.shape != arrays[0].shape:
            remedy = "bring all to one size, of own silos with --resize 64"
            if array.shape[:2] == arrays[0].shape[:2]:
                remedy = "save all in grey (the 1 at the end), or all in colour"
            raise BadInput(f"{path} {picture.name}: is {array.shape}, the first is {arrays[0].shape}; {remedy}")
        total += array.nbytes
        if total > LARGEST:
            raise BadInput(f"{path}: unpacks to more than {LARGEST} bytes; give a smaller set")
        arrays.append(array)
    return np.stack(arrays)


def _pillow() -> Any:
    try:
        return import_module("PIL.Image")
    except ImportError:
        raise BadInput("pictures need Pillow, which is not installed; run `pip install pillow`") from None
