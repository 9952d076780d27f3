"""What is said beside the scores."""

from coterie.measure.notes import notes


def rejected(silo: str, round: int) -> dict[str, object]:
    return {"seed": 0, "round": round, "silo": silo, "reason": "'w' is not finite"}


def test_rejected_uploads_are_counted_and_named() -> None:
    summary = {"fedavg": {"rejected": [rejected("north", 2), rejected("north", 5)]}, "fedamp": {"rejected": []}}
    assert notes(summary) == ["fedavg: 2 uploads rejected: north 2× (first in round 2: 'w' is not finite)"]


def test_of_many_silos_three_are_named() -> None:
    line = notes({"fedavg": {"rejected": [rejected(silo, 1) for silo in "abcde"]}})[0]
    assert "5 uploads" in line and "c 1×" in line and "d 1×" not in line and line.endswith("and 2 more silos")


def test_of_one_upload_it_says_so() -> None:
    assert notes({"fedavg": {"rejected": [rejected("a", 1)]}})[0].startswith("fedavg: 1 upload rejected: a 1×")
