"""What a method's class says by its base and its step."""

import pytest

from coterie.engine.method import Method
from coterie.engine.task import Weights, plain_step
from coterie.methods.fedavg_local import Copy
from coterie.methods.parts.averaging import Global, GlobalDown, ModelUp
from coterie.wire import Down, Private, Server, State, Up


class Plain(Method[Global, GlobalDown, ModelUp, Copy, Weights]):
    """Names nothing."""


class OwnStep(Plain):
    """A step of its own."""

    def step(self, task, state, batch):
        return plain_step(task, state, batch)


class Fused(OwnStep):
    """The same, for rates of rows."""

    lr_by_row = True


def test_records_are_those_of_the_base() -> None:
    assert (Plain.down, Plain.up, Plain.private) == (GlobalDown, ModelUp, Copy)
    assert (OwnStep.down, OwnStep.private) == (GlobalDown, Copy)


def test_a_step_of_ones_own_takes_one_rate_unless_it_says_otherwise() -> None:
    assert [each.lr_by_row for each in (Plain, OwnStep, Fused)] == [True, False, True]


def test_what_is_no_record_of_its_own_says_nothing() -> None:
    class Open(Method[Server, Down, Up, Private, State]):
        pass

    assert (Open.down, Open.up, Open.private) == (Method.down, Method.up, Method.private)


def test_a_record_in_quotes_is_refused() -> None:
    with pytest.raises(TypeError, match="put the record Kept above it, and no quotes"):

        class Quoted(Method[Global, GlobalDown, ModelUp, "Kept", Weights]):
            pass
