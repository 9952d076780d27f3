"""The seam: what a method is. Server half sees uploads only; silo half is written over k rows and knows no engine."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from inspect import signature
from itertools import chain
from typing import Any, ClassVar, ForwardRef, Generic, Self, cast, get_args

import numpy as np
import torch
from torch import Tensor
from typing_extensions import TypeVar

from coterie.engine.dpsgd import DPSGD
from coterie.engine.layout import Columns
from coterie.engine.rows import Model
from coterie.engine.task import Batch, Task, plain_step
from coterie.errors import BadInput
from coterie.keys import generator
from coterie.options import check_keys
from coterie.wire import Deployable, Down, Predictor, Private, Record, Server, State, Up


@dataclass(frozen=True)
class Roster:
    """Who is in the federation, as every party may know it: the declarations silos make when they join."""

    names: tuple[str, ...]
    sizes: Tensor  # (m,) training samples of each silo
    validation: Tensor  # (m,) validation samples of each silo
    seed: int

    def __len__(self) -> int:
        return len(self.names)

    def take(self, index: Tensor) -> "Roster":
        """Some of the silos."""
        names = tuple(self.names[i] for i in index.tolist())
        return Roster(names, self.sizes[index], self.validation[index], self.seed)


@dataclass(frozen=True)
class Cohort:
    """The silos of one exchange, and the model that they train."""

    ids: Tensor  # (k,) their places in the roster
    round: int
    roster: Roster
    model: Model

    @classmethod
    def everyone(cls, roster: Roster, model: Model, round: int) -> "Cohort":
        """All silos of a roster."""
        return cls(torch.arange(len(roster), device=model.device), round, roster, model)

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def names(self) -> list[str]:
        """What they are called."""
        return [self.roster.names[silo] for silo in self.ids.tolist()]

    @property
    def sizes(self) -> Tensor:
        """(k,) training samples of each."""
        return self.roster.sizes[self.ids]

    def rng(self, purpose: str, silo: int) -> np.random.Generator:
        """A generator for the server's own draws about one silo of the roster."""
        return generator(self.roster.seed, purpose, self.round, self.roster.names[silo])


class Nothing(Private):
    """A silo that keeps nothing."""


class NothingDown(Down):
    """The server sends nothing."""


class NothingUp(Up):
    """Nothing leaves the silo."""


class NothingKept(Server):
    """The server keeps nothing."""


# A method's own records; those of a method that is not known are anything.
ServerT = TypeVar("ServerT", bound=Server, default=Any)
DownT = TypeVar("DownT", bound=Down, default=Any)
UpT = TypeVar("UpT", bound=Up, default=Any)
PrivateT = TypeVar("PrivateT", bound=Private, default=Any)
StateT = TypeVar("StateT", bound=Record, default=Any)


@dataclass(frozen=True)
class Method(Generic[ServerT, DownT, UpT, PrivateT, StateT]):
    """A method's hyper-parameters are its fields; what it does are these functions, over its own records."""

    paper: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    down: ClassVar[type[Down]] = NothingDown
    up: ClassVar[type[Up]] = NothingUp
    private: ClassVar[type[Private]] = Nothing
    averages: ClassVar[bool] = False  # whether its server takes in nothing but a weighted mean of the uploads
    compares: ClassVar[bool] = False  # whether its server goes by how models lie to each other: `layout.weights`
    lr_by_row: ClassVar[bool] = True  # whether `step` takes a learning rate for each row: batch.lr (k,); own: False
    plain_steps: ClassVar[bool] = False  # whether its equations are for plain gradient steps, and Adam's may ruin it
    by_columns: ClassVar[bool] = True  # whether what its class defines of the server's half is right for some columns
    from_own: ClassVar[bool] = False  # whether a silo may train on from its own model and leave what it was sent aside
    by_gradients: ClassVar[bool] = False  # whether silos' data reach their uploads by one gradient of each batch alone
    one_model: ClassVar[bool] = True  # whether what a silo deploys is one model, which can be trained on
    learns_from_validation: ClassVar[bool] = False  # whether validation data flatter it, so that they cannot prefer it

    def __init_subclass__(cls) -> None:
        """Its records are those that its base is generic in, unless it names others.

        A step of its own is taken to need the learning rate as one number, unless it says otherwise.
        """
        super().__init_subclass__()
        named = vars(cls).copy()
        for record in chain.from_iterable(map(get_args, named.get("__orig_bases__", ()))):
            if isinstance(record, ForwardRef):
                raise TypeError(f"{cls.__name__}: put the record {record.__forward_arg__} above it, and no quotes")
            for name, kind in (("down", Down), ("up", Up), ("private", Private)):
                if isinstance(record, type) and issubclass(record, kind) and record is not kind and name not in named:
                    setattr(cls, name, record)
        if "step" in named and "lr_by_row" not in named and isinstance(cls.lr_by_row, bool):
            cls.lr_by_row = False

    def __new__(cls, *args: Any, **options: Any) -> Self:
        """Refuse a hyper-parameter that it does not have, with the nearest that it has."""
        known = signature(cls.__init__).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in known.values()):
            check_keys(cls.__name__, options, [*known][1:])
        return super().__new__(cls)

    # Server: sees only uploads.

    def open(self, roster: Roster, model: Model) -> ServerT:
        """The server's state before the first round."""
        return cast(ServerT, NothingKept())

    def send(self, server: ServerT, cohort: Cohort) -> DownT:
        """What the silos of a cohort are sent, stacked over them."""
        return cast(DownT, NothingDown())

    def receive(self, server: ServerT, cohort: Cohort, up: UpT) -> ServerT:
        """The server's state after the uploads of those who replied (at least one)."""
        return server

    # A second exchange in a round, where uploads cannot be taken in without it.

    def confirm(self, asked: Cohort, cohort: Cohort, up: UpT) -> Down | None:
        """What those whose uploads count are asked next, stacked over them; None: nothing."""
        return None

    def confirmed(self, task: Task, question: Any) -> Up:
        """What silos answer to that."""
        raise NotImplementedError

    def summed(self, asked: Cohort, cohort: Cohort, up: UpT, answered: Cohort, answers: Any) -> Any:
        """The uploads as `receive` takes them, with these answers; BadInput: they cannot be, and the round is void."""
        raise NotImplementedError

    def unpacked(self, down: Any, up: Any) -> Any:
        """Uploads of silos that were sent `down` as `receive` takes them; a wrapper may pack them for the way."""
        return up

    def axes(self, roster: Roster, model: Model) -> dict[str, int]:
        """How long the axes are that its records name; a server refuses uploads of other shapes."""
        return {"d": model.width, "s": self.shared(model).width, "N": len(roster), "m": len(roster)}

    def shared(self, model: Model) -> Columns:
        """The columns of a model that fields with `columns="shared"` hold: those that may leave a silo."""
        return model.columns("*")

    # Silo: k rows.

    def enroll(self, roster: Roster, model: Model, rows: Tensor) -> PrivateT:
        """What the silos at these places of the roster keep before the first round."""
        return cast(PrivateT, Nothing())

    def begin(self, task: Task, down: DownT, private: PrivateT) -> StateT:
        """The state in which local training starts."""
        raise NotImplementedError

    def step(self, task: Task, state: StateT, batch: Batch) -> StateT:
        """One mini-batch for k rows: if nothing else, an optimiser step of the state's `w` on the silo's own loss."""
        return plain_step(task, state, batch)

    def end(self, task: Task, state: StateT, down: DownT, private: PrivateT) -> tuple[UpT, PrivateT]:
        """What leaves the silo, and what it keeps."""
        raise NotImplementedError

    def personal(self, task: Task, down: DownT, private: PrivateT) -> Deployable:
        """The model each silo would deploy, given the server's latest word: if nothing else, the `w` that it keeps."""
        return Predictor(models=cast(Any, private).w)

    def cloud(self, task: Task, down: DownT, private: PrivateT) -> Deployable | None:
        """The model the server keeps for each silo beside the personal one, where a method has such."""
        return None

    def dpsgd(self, task: Task) -> DPSGD | None:
        """How the gradients of `step` hide every single sample, where they do."""
        return None

    def fewest(self, samples: int, steps: tuple[int, ...]) -> int:
        """Of how few samples a gradient is at least, in a silo of so many; `steps`: a full one, and an epoch's last."""
        return min(steps)

    # A silo that arrives after training: `host` and `adapt` alternate until the silo sends nothing more.

    def host(self, server: ServerT, newcomers: Cohort, up: UpT | None) -> DownT:
        """What newcomers are sent, at first (`up` is None), then in answer to their upload; changes nothing."""
        return cast(DownT, NothingDown())

    def adapt(self, task: Task, down: DownT, private: PrivateT | None) -> tuple[UpT | None, PrivateT]:
        """A newcomer's upload (None: it has settled) and what it keeps."""
        raise NotImplementedError

    # What a person wants to know.

    def refusal(self, roster: Roster, model: Model) -> str | None:
        """Why this method cannot run on such a federation, if it cannot."""
        return None

    def trace(self, server: ServerT, everyone: Cohort, private: PrivateT | None) -> Mapping[str, Tensor]:
        """What to keep of a round for looking at: `collaboration` (m, m) is who learns from whom.

        A simulation passes the silos' private state too; a deployed server cannot, and passes None.
        """
        return {}


def local_round(method: Method, task: Task, down: Any, private: Any) -> tuple[Any, Any]:
    """One round of local training: what leaves the silos, and what they keep."""
    state = task.run(method.step, method.begin(task, down, private), "train", dpsgd=method.dpsgd(task))
    return method.end(task, state, down, private)


def settled(
    method: Method, server: Any, newcomers: Cohort, adapt: Callable[[Any], Any | None], most: int | None = None
) -> Any:
    """Have silos arrive after training: what the server last sent them, once they `adapt` to it without an upload.

    BadInput where that takes more turns than the most.
    """
    down, turns = method.host(server, newcomers, None), 0
    while (up := adapt(down)) is not None:
        if turns == most:
            raise BadInput(f"it has not settled after {most} turns")
        down, turns = method.host(server, newcomers, up), turns + 1
    return down


def spread(one: Tensor, k: int) -> Tensor:
    """A model that all share as k rows: (d,) -> (k, d); rows are left as they are."""
    return one.expand(k, *one.shape) if one.ndim == 1 else one


__all__ = [
    "Batch", "Cohort", "Columns", "Deployable", "Down", "DownT", "Method", "Model", "Nothing", "NothingDown",
    "NothingKept", "NothingUp", "Predictor", "Private", "PrivateT", "Roster", "Server", "State", "StateT", "Task",
    "Up", "UpT", "local_round", "settled", "spread",
]  # fmt: skip
