"""Silos in this process, behind a transport that loses what it is told to."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from coterie.conformance import small_silos
from coterie.data.silo import Silo
from coterie.deploy.messages import Answer, Job, Lost, Request, request
from coterie.deploy.own import SiloSource, save_silo
from coterie.deploy.policy import FILE, Policy, policy_text
from coterie.deploy.silo import SiloSide
from coterie.engine.exchange import Failure
from coterie.engine.training import Training
from coterie.methods import make, written
from coterie.options import resolved

NAMES = ("north", "south", "east")
TRAINING = Training(rounds=3, local_epochs=2, batch_size=8, lr=0.1)


def silos() -> list[Silo]:
    """Three small silos with names of their own."""
    return [replace(silo, name=name) for silo, name in zip(small_silos(), NAMES, strict=False)]


def job(method: str, training: Training = TRAINING, **options: object) -> Job:
    """A run of a method on them."""
    found = silos()
    return Job(
        method=method,
        options=written(method, make(method, options)),
        model={"name": "mlp", "hidden": [4]},
        train=resolved(training),
        seed=1,
        shape=(5,),
        classes=3,
        outputs=3,
        names=NAMES,
        sizes=tuple(len(silo.train) for silo in found),
        validation=tuple(len(silo.validation) for silo in found),
    )


def settle(
    folder: Path, more: list[Silo] | None = None, smallest: int = Policy().smallest_batch
) -> dict[str, SiloSide]:
    """Their folders, with data and the policy of a federation to try things out."""
    text = policy_text("all").replace(f"smallest_batch = {Policy().smallest_batch}", f"smallest_batch = {smallest}")
    sides = {}
    for silo in [*silos(), *(more or [])]:
        home = folder / silo.name
        home.mkdir(parents=True)
        (home / FILE).write_text(text)
        save_silo(silo, home / "data.npz")
        sides[silo.name] = SiloSide(silo.name, home, SiloSource(home / "data.npz"), "cpu")
    return sides


class Loop:
    """A transport in this process; everything crosses as text and bytes."""

    def __init__(self, sides: Mapping[str, SiloSide]) -> None:
        self.sides = sides
        self.asked: list[Request] = []
        self.deaf: Callable[[Request], bool] = lambda request: False  # the request never reaches the silo
        self.mute: Callable[[Request], bool] = lambda request: False  # its answer never reaches the server

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        found: dict[str, Answer | Failure] = {}
        for name, each in requests.items():
            self.asked.append(each)
            if name not in self.sides or self.deaf(each):
                found[name] = Failure("not connected")
                continue
            answer = self.sides[name].answer(request(each.head(), each.body))
            found[name] = Lost("the answer was lost") if self.mute(each) else answer
        return found
