"""What is said beside the scores."""

from coterie.report.notes import notes


def rejected(silo: str, round: int) -> dict[str, object]:
    return {"seed": 0, "round": round, "silo": silo, "reason": "'w' is not finite"}


def test_rejected_uploads_are_counted_and_named() -> None:
    summary = {"fedavg": {"rejected": [rejected("north", 2), rejected("north", 5)]}, "fedamp": {"rejected": []}}
    assert notes(summary) == ["fedavg: 2 uploads rejected: north 2× (first in round 2: 'w' is not finite)"]


def test_of_many_silos_three_are_named() -> None:
    line = notes({"fedavg": {"rejected": [rejected(silo, 1) for silo in "abcde"]}})[0]
    assert "5 uploads" in line and "c 1×" in line and "d 1×" not in line and line.endswith("and 2 more silos")


def test_a_rate_at_an_end_of_what_is_tried_is_named_once_for_all_methods_that_have_it() -> None:
    most, least = ({"optimizer": "sgd", "lr": lr, "end": end} for lr, end in ((10.0, "largest"), (0.01, "smallest")))
    found = {"fedavg": {"rate_at_edge": most}, "separate": {}, "apple": {"rate_at_edge": most}}
    assert notes({**found, "ditto": {"rate_at_edge": least}}) == [
        "fedavg, apple: of sgd the search took the largest rate that it tries, 10; whether a larger one would do "
        "better is not known",
        "ditto: of sgd the search took the smallest rate that it tries, 0.01; whether a smaller one would do better is "
        "not known",
    ]


def test_of_one_upload_it_says_so() -> None:
    assert notes({"fedavg": {"rejected": [rejected("a", 1)]}})[0].startswith("fedavg: 1 upload rejected: a 1×")


def test_privacy_says_its_epsilon_and_what_it_does_not_cover() -> None:
    told = {"epsilon": 12.3456, "delta": 1e-5, "clip": 0.5, "noise": 2.0, "uploads": 30}
    line = notes({"fedavg": {"privacy": told}})[0]
    assert line.startswith("fedavg: ε = 12.35 at δ = 1e-05 for all data of a silo, by its 30 uploads")
    assert "measures are not covered" in line
    record = told | {"level": "record", "steps": 240, "sampling": 0.016, "silo": "a"}
    line = notes({"fedavg": {"privacy": record}})[0]
    assert "for each record of a silo, by its 30 uploads (240 steps on batches of 0.016 of its rows, clip 0.5" in line
    assert "no differential privacy" in notes({"fedavg": {"privacy": told | {"noise": 0.0, "epsilon": None}}})[0]


def test_what_all_methods_of_a_run_spend_is_said_where_there_are_several() -> None:
    told = {"epsilon": 12.3456, "delta": 1e-5, "clip": 0.5, "noise": 2.0, "uploads": 30}
    methods = {"fedavg": {"privacy": told}, "fedamp": {"privacy": told}}
    run = {"epsilon": 20.0, "delta": 1e-5, "silo": "north", "unprotected": []}
    assert notes(methods, run)[-1] == (
        "the run: ε = 20 at δ = 1e-05 for all data of a silo (north), by its uploads of all methods and seeds"
    )
    bare = run | {"epsilon": None, "unprotected": ["apple"]}
    assert notes(methods | {"apple": {}}, bare)[-1] == (
        "the run: no differential privacy in all (ε = ∞): what apple uploads is not noised"
    )
    assert len(notes({"fedavg": {"privacy": told}}, run)) == 1


def test_an_epsilon_beyond_all_bounds_is_said_to_be_so() -> None:
    told = {"epsilon": None, "delta": 1e-5, "clip": 0.5, "noise": 1e-9, "uploads": 30}  # None: as JSON has infinity
    assert "ε = ∞ at" in notes({"fedavg": {"privacy": told}})[0]


def test_a_secure_level_is_printed_with_what_the_server_learns() -> None:
    (line,) = notes({"fedavg": {"secure": {"level": "secagg", "server_learns": "the sum"}}})
    assert line == "fedavg: [secure] secagg: the server learns the sum"
