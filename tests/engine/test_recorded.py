"""What can be said of recorded steps without a GPU; bench/recorded.py holds replays against plain steps on one."""

from functools import partial

import torch
from torch import Tensor

from coterie.engine import recorded
from coterie.wire import State, rows


class Two(State):
    """A state of two parts."""

    w: Tensor = rows("the model")
    last: Tensor = rows("the one before")


HELD = Two(w=torch.ones(2, 3), last=torch.zeros(2, 3))


def test_a_state_that_stays_in_its_places_is_copied_to_them() -> None:
    new = HELD.replace(w=HELD.w + 1)
    assert recorded._fits(HELD, new)
    held = HELD.map(torch.clone)
    place = held.w.data_ptr()
    recorded._hold(held, new)
    assert torch.equal(held.w, HELD.w + 1) and held.w.data_ptr() == place and torch.equal(held.last, HELD.last)


def test_a_state_whose_parts_change_places_or_shapes_is_not_recorded() -> None:
    assert not recorded._fits(HELD, HELD.replace(w=HELD.w + 1, last=HELD.w))
    assert not recorded._fits(HELD, HELD.replace(last=HELD.w[:]))
    assert not recorded._fits(HELD, HELD.replace(w=torch.ones(2, 4)))
    assert not recorded._fits(HELD, HELD.replace(w=HELD.w.double()))


def test_steps_without_a_name_and_on_a_cpu_are_taken_one_by_one() -> None:
    assert not recorded.pays(torch.device("cpu"), 100, partial(print), HELD)
    assert recorded.pays(torch.device("cuda"), 100, partial(print), HELD)
    assert not recorded.pays(torch.device("cuda"), recorded.LEAST - 1, partial(print), HELD)
