"""What a person sees of a run between real silos."""

import io

import pytest
from rich.console import Console

from coterie.commands.federation_view import View, line

NEWS = {
    "state": "training",
    "method": "fedamp",
    "seed": 1,
    "round": 3,
    "rounds": 10,
    "score": 0.812,
    "measure": "accuracy",
    "silos": {"east": "", "south": "not connected", "west": ""},
    "waiting": ["west"],
    "absent": {"ahead": "refused: another [version]"},
}


def shown(terminal: bool, *news: dict) -> str:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=100, color_system=None)
    with View(console) as view:
        for each in news:
            view(each, {"east": "online", "south": "offline"})
    return out.getvalue()


def test_a_line_says_round_accuracy_and_who_is_missing_and_why() -> None:
    assert line(NEWS) == (
        "training · fedamp, seed 1, round 3/10 · accuracy 81.2% · 2 of 3 silos replied · south: not connected · "
        "ahead: refused: another [version]"
    )


def test_on_a_terminal_every_silo_has_its_line() -> None:
    lines = shown(True, NEWS).splitlines()
    assert any("3/10 rounds" in each and "accuracy 81.2%" in each for each in lines)
    for words in (("east", "online", "replied"), ("south", "offline", "not connected"), ("west", "asked")):
        assert any(all(word in each for word in words) for each in lines), words
    assert any("ahead" in each and "another [version]" in each for each in lines)


@pytest.mark.parametrize(("age", "silent"), [(10, False), (100, True)])
def test_a_silo_that_is_silent_for_long_is_named(age: float, silent: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.commands.federation_view.time.time", lambda: 1000.0 + age)
    news = NEWS | {"time": 1000.0}
    assert line(news).endswith(" · no answer yet from west") == silent
    assert ("no answer yet" in shown(True, news)) == silent


def test_elsewhere_a_change_is_told_once() -> None:
    assert shown(False, NEWS, NEWS).count("training") == 1
    assert shown(False, NEWS, NEWS | {"round": 4}).count("training") == 2


def test_before_the_first_run_only_connections_are_shown() -> None:
    assert "rounds" not in shown(True, {}) and "offline" in shown(True, {})
