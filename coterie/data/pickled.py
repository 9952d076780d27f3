"""Tables and arrays that others keep as pickles, read without unpickling: nothing is imported, nothing is called.

A pickle is a program that calls functions by name. Here its opcodes are interpreted, a call is only noted (`Call`) and
only by the few names of `NAMES`, and tables are made by hand from numbers, text and buffers.
"""

import lzma
import math
import pickletools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from pandas import DataFrame

from coterie.data.archives import bounded, reading
from coterie.data.silo import Array

LARGEST = 64 << 20  # bytes of a file unpacked, and cells of its table
MOST_AXES = 5  # of an array that is no table
XZ = b"\xfd7zXZ\x00"

PUSHED = {
    "BININT", "BININT1", "BININT2", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
}  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

FRAME, BLOCKS, BLOCK = "pandas DataFrame", "BlockManager", "_unpickle_block"
BUFFER, RECONSTRUCT, ARRAY, DTYPE = "_frombuffer", "_reconstruct", "numpy ndarray", "numpy dtype"
INDEX, BACKED, CATEGORICAL = "_new_Index", "__pyx_unpickle_NDArrayBacked", "Categorical"
CATEGORIES, INTEGERS, SLICE = "CategoricalDtype", "IntegerArray", "builtins slice"
NAMES = {  # what a pickle may name, module and name, and what it is called here
    FRAME: FRAME,
    "pandas.core.frame DataFrame": FRAME,
    "pandas.core.internals.managers BlockManager": BLOCKS,
    "pandas._libs.internals _unpickle_block": BLOCK,
    "numpy.core.numeric _frombuffer": BUFFER,
    "numpy._core.numeric _frombuffer": BUFFER,
    "numpy.core.multiarray _reconstruct": RECONSTRUCT,
    "numpy._core.multiarray _reconstruct": RECONSTRUCT,
    ARRAY: ARRAY,
    DTYPE: DTYPE,
    "pandas.core.indexes.base _new_Index": INDEX,
    "pandas.core.indexes.base Index": "Index",
    "pandas Index": "Index",
    "pandas.core.indexes.range RangeIndex": "RangeIndex",
    "pandas RangeIndex": "RangeIndex",
    "pandas._libs.arrays __pyx_unpickle_NDArrayBacked": BACKED,
    "pandas.core.arrays.categorical Categorical": CATEGORICAL,
    "pandas Categorical": CATEGORICAL,
    "pandas.core.dtypes.dtypes CategoricalDtype": CATEGORIES,
    "pandas CategoricalDtype": CATEGORIES,
    "pandas.core.arrays.integer IntegerArray": INTEGERS,
    "pandas.arrays IntegerArray": INTEGERS,
    "pandas.core.arrays.integer Int32Dtype": "Int32Dtype",
    "pandas Int32Dtype": "Int32Dtype",
    SLICE: SLICE,
}
PLAIN = {"b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"}  # types of numbers
DAMAGED = (ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError, lzma.LZMAError, EOFError)


@dataclass(frozen=True)
class Name:
    """A function or class that a pickle names."""

    text: str


@dataclass
class Call:
    """A call that a pickle asks for, noted and not made, and the state that the object would be given."""

    name: str
    arguments: Sequence[Any]
    state: Any = None


@dataclass
class CellsLeft:
    """How many cells of arrays may still be made: a pickle of few bytes may refer to one array without end."""

    left: int

    def take(self, cells: int) -> None:
        """Refuse more than are left."""
        self.left -= cells
        if self.left < 0:
            raise ValueError("too large")


def read_pickled(path: Path) -> DataFrame:
    """The pandas table in a pickle of protocol 4 or 5, which may be packed as .xz."""
    with reading(path, DAMAGED, "damaged or no table of pandas", "install its package again"):
        with path.open("rb") as file:
            packed = file.read(len(XZ)) == XZ
        with lzma.open(path) if packed else path.open("rb") as file:
            data = bounded(file, LARGEST, str(path))
        return _frame(interpreted(data), CellsLeft(LARGEST))


def held_arrays(data: bytes) -> dict[str, Array]:
    """The arrays by name of a dict that NumPy wrote as the one object of an array; a ValueError of anything else."""
    state = _of(_calls(interpreted(data), RECONSTRUCT).state, tuple)
    (held,) = _of(state[4], list)
    cells = CellsLeft(len(data))  # none takes less than a byte
    return {name: _array(value, cells, MOST_AXES) for name, value in _of(held, dict).items()}


def interpreted(data: bytes) -> Any:
    """What a pickle describes, of plain values and `Call`s."""
    stack, below, memo = list[Any](), list[list[Any]](), dict[int, Any]()  # `below`: the stacks under each mark
    for opcode, argument, _ in pickletools.genops(data):
        name = opcode.name
        if name in PUSHED:
            stack.append(argument)
        elif name in CONSTANTS:
            stack.append(CONSTANTS[name])
        elif name in ("EMPTY_LIST", "EMPTY_DICT"):
            stack.append([] if name == "EMPTY_LIST" else {})
        elif name in ("MEMOIZE", "BINPUT", "LONG_BINPUT"):
            memo[len(memo) if name == "MEMOIZE" else _of(argument, int)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[_of(argument, int)])
        elif name == "MARK":
            below.append(stack)
            stack = []
        elif name in TUPLES:
            stack.append(tuple(_taken(stack, TUPLES[name])))
        elif name == "TUPLE":
            items, stack = stack, below.pop()
            stack.append(tuple(items))
        elif name in ("APPENDS", "SETITEMS"):
            items, stack = stack, below.pop()
            _extend(stack[-1], items)
        elif name in ("APPEND", "SETITEM"):
            items = _taken(stack, 1 if name == "APPEND" else 2)
            _extend(stack[-1], items)
        elif name == "STACK_GLOBAL":
            stack.append(_named(*_taken(stack, 2)))
        elif name == "GLOBAL":
            stack.append(_named(*_of(argument, str).split(" ", 1)))
        elif name in ("REDUCE", "NEWOBJ"):
            called, arguments = _taken(stack, 2)
            stack.append(Call(_of(called, Name).text, _of(arguments, tuple)))
        elif name == "BUILD":
            (state,) = _taken(stack, 1)
            _of(stack[-1], Call).state = state
        elif name == "STOP":
            (whole,) = stack
            return whole
        elif name not in ("PROTO", "FRAME"):
            raise ValueError(f"the opcode {name}, which no table needs")
    raise ValueError("it ends early")


def _taken(stack: list[Any], count: int) -> list[Any]:
    if len(stack) < count:
        raise ValueError("its stack is empty")
    items = stack[-count:]
    del stack[-count:]
    return items


def _extend(target: Any, items: list[Any]) -> None:
    if isinstance(target, list):
        target.extend(items)
    else:
        names = (_of(key, str) for key in items[::2])
        _of(target, dict).update(zip(names, items[1::2], strict=True))


def _named(module: Any, name: Any) -> Name:
    full = f"{_of(module, str)} {_of(name, str)}"
    if full not in NAMES:
        raise ValueError(f"it names {full.replace(' ', '.')!r}, which no table needs")
    return Name(NAMES[full])


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"a {type(value).__name__} where a {kind.__name__} belongs")
    return value


def _calls(value: Any, *names: str) -> Call:
    found: Call = _of(value, Call)
    if found.name not in names:
        raise ValueError(f"{found.name} where {names[0]} belongs")
    return found


def _frame(whole: Any, cells: CellsLeft) -> DataFrame:
    """The table: its blocks' rows, each in the place of its column."""
    blocks, axes = _calls(_of(_calls(whole, FRAME).state, dict)["_mgr"], BLOCKS).arguments[:2]
    names = [_of(name, str) for name in _index(axes[0], cells)]
    if len(set(names)) < len(names):
        raise ValueError("two columns of one name")
    columns = dict[str, Array]()
    for block in blocks:
        values, places = _calls(block, BLOCK).arguments[:2]
        rows = _columns(values, cells)  # (columns, rows)
        for place, row in zip(_places(places, len(names), cells), rows, strict=True):
            if names[place] in columns:
                raise ValueError("a column that two blocks hold")
            columns[names[place]] = row
    if len(columns) < len(names) or len({len(column) for column in columns.values()}) > 1:
        raise ValueError("columns are missing or of different lengths")
    return DataFrame({name: columns[name] for name in names})


def _columns(values: Any, cells: CellsLeft) -> Iterable[Array]:
    """The columns of a block: an array of numbers or objects, whole numbers with gaps, or categories."""
    called = _calls(values, BUFFER, RECONSTRUCT, INTEGERS, BACKED)
    if called.name == INTEGERS:
        return [_with_gaps(called, cells, most_axes=2)]
    if called.name == BACKED:
        return [_categories(called, cells)]
    array = _array(values, cells)
    return array if array.ndim == 2 else [array]


def _with_gaps(called: Call, cells: CellsLeft, most_axes: int) -> Array:
    """Whole numbers, NaN where there is none."""
    state = _of(called.state, dict)
    data, gaps = (_array(state[key], cells, most_axes) for key in ("_data", "_mask"))
    return np.where(gaps.astype(bool), np.nan, data.astype(float))


def _categories(called: Call, cells: CellsLeft) -> Array:
    """(n,) the text of each row, None where there is none."""
    kind, _, state = called.arguments
    if kind != Name(CATEGORICAL):
        raise ValueError("an array of an unknown type")
    state = _of(called.state if state is None else state, tuple)
    arrays = [each for each in state if isinstance(each, Call) and each.name in (BUFFER, RECONSTRUCT)]
    (types,) = [each for each in state if isinstance(each, Call) and each.name == CATEGORIES]
    levels = np.array([*_index(_of(types.state, dict)["categories"], cells), None], dtype=object)
    codes = _array(arrays[0], cells).astype(np.int64)
    if not ((codes >= -1) & (codes < len(levels) - 1)).all():
        raise ValueError("a category that is not listed")
    found: Array = levels[codes]  # -1, the last, is None
    return found


def _index(value: Any, cells: CellsLeft) -> list[Any]:
    """What an index holds: the names of columns, or levels."""
    kind, state = _calls(value, INDEX).arguments
    if kind != Name("Index"):
        raise ValueError("an index of an unknown type")
    called = _calls(_of(state, dict)["data"], BUFFER, RECONSTRUCT, INTEGERS)
    if called.name == INTEGERS:
        return [int(each) for each in _with_gaps(called, cells, most_axes=1).tolist()]
    found: list[Any] = _array(called, cells, most_axes=1).tolist()
    return found


def _places(value: Any, columns: int, cells: CellsLeft) -> Sequence[int]:
    """Which columns of the table a block holds."""
    called = _calls(value, SLICE, BUFFER, RECONSTRUCT)
    places = range(columns)[slice(*called.arguments)] if called.name == SLICE else _array(value, cells, 1).tolist()
    if not all(0 <= place < columns for place in places):
        raise ValueError("a column out of range")
    return places


def _array(value: Any, cells: CellsLeft, most_axes: int = 2) -> Array:
    """An array of plain numbers, or of plain objects: text, numbers, None."""
    called = _calls(value, BUFFER, RECONSTRUCT)
    if called.name == BUFFER:
        data, dtype, shape, order = called.arguments
    else:
        _, shape, dtype, fortran, data = _of(called.state, tuple)
        order = "F" if fortran else "C"
    kind = _of(_calls(dtype, DTYPE).arguments[0], str)
    shape = tuple(_of(size, int) for size in _of(shape, tuple))
    if not 1 <= len(shape) <= most_axes or min(shape) < 0 or math.prod(shape) > LARGEST or max(shape) > LARGEST:
        raise ValueError(f"an array of shape {shape}")
    cells.take(math.prod(shape))
    if kind == "O8":
        made = np.empty(len(_of(data, list)), dtype=object)
        made[:] = [each if each is None or isinstance(each, str) else float(each) for each in data]
    elif kind in PLAIN:
        ends = ">" if _of(dtype.state, tuple)[1] == ">" else "<"
        made = np.frombuffer(data, np.dtype(f"{ends}{kind}"))
    else:
        raise ValueError(f"an array of type {kind!r:.20}")
    return made.reshape(shape, order="F" if order == "F" else "C")
