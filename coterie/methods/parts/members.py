"""A stack's members: what is trained for them, each once, and what each gives to be mixed."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from coterie.engine.method import Deployable, Method, Task
from coterie.engine.wrapper import layers
from coterie.methods import make
from coterie.methods.ditto import Ditto
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedavg_local import FedAvgLocal
from coterie.methods.separate import Separate
from coterie.methods.wrappers.finetune import FineTuned
from coterie.methods.wrappers.trained import OwnTraining, WithTraining
from coterie.options import parse, resolved

TUNED = "-ft"  # ends the label of a fine-tuned member


class Candidate(NamedTuple):
    """One of the models that are mixed."""

    name: str
    training: str  # whose records it is made of
    give: Callable[[Task, Any, Any], Deployable | None]


def as_table(member: str | Mapping[str, Any]) -> dict[str, Any]:
    """A member as a table that names its method."""
    return {"method": member} if isinstance(member, str) else dict(member)


def members_of(given: Sequence[str | Mapping[str, Any]]) -> dict[str, Method]:
    """The methods by label."""
    made: dict[str, Method] = {}
    for each in given:
        table = as_table(each)
        own = table.pop("train", {})
        name = label = str(table.get("method", "?"))
        while label in made:
            label = f"{name}-{sum(each.startswith(name) for each in made) + 1}"
        method, settings = make(label, table), parse(OwnTraining, own, f"[methods.{label}] train")
        made[label] = WithTraining(method, settings) if resolved(settings) else method
    return made


def trainings_of(members: Mapping[str, Method]) -> dict[str, Method]:
    """What is trained, each once, by the name of its fields in records."""
    distinct: dict[str, Method] = {}
    for label, member in members.items():
        plain, short = untuned(member), label.removesuffix(TUNED)
        if plain not in distinct.values():
            distinct[_field(label if plain == member or short in members else short)] = plain
    carried = [_averaged(each) for each in distinct.values() if _carries_fedavg(each)]
    return {name: each for name, each in distinct.items() if each not in carried}


def candidates_of(members: Mapping[str, Method], trainings: Mapping[str, Method]) -> list[Candidate]:
    """What each member would deploy and, where it has one, the model that the server keeps for the silo."""
    own = [Candidate(label, _training(each, trainings), each.personal) for label, each in members.items()]
    known = [bare(member) for member in members.values()]
    averaged = any(isinstance(bare(untuned(member)), FedAvg) for member in members.values())
    kept = []
    for label, member in members.items():
        plain, training = untuned(member), _training(member, trainings)
        if plain != member and bare(plain) not in known:
            kept.append(Candidate(label.removesuffix(TUNED), training, plain.personal))
        if _has_cloud(plain) and not (averaged and _carries_fedavg(plain)):
            kept.append(Candidate(f"{label} cloud", training, plain.cloud))
    return own + kept


def untuned(member: Method) -> Method:
    """The method whose training a member needs: fine-tuning comes after it."""
    if isinstance(member, WithTraining):
        return WithTraining(untuned(member.base), member.options)
    return untuned(member.base) if isinstance(member, FineTuned) else member


def is_alone(member: Method) -> bool:
    """Whether each silo trains alone in it."""
    return isinstance(bare(member), Separate)


def bare(member: Method) -> Method:
    """A member, whatever settings it trains with."""
    return member.base if isinstance(member, WithTraining) else member


def _training(member: Method, trainings: Mapping[str, Method]) -> str:
    plain = untuned(member)
    found = [name for name, each in trainings.items() if each == plain]
    carrying = (name for name, each in trainings.items() if _carries_fedavg(each) and _averaged(each) == plain)
    return found[0] if found else next(carrying)


def _carries_fedavg(method: Method) -> bool:
    """Whether FedAvg's global model is trained in it, by the very steps of FedAvg."""
    plain = bare(method)
    return isinstance(plain, FedAvgLocal) or (isinstance(plain, Ditto) and plain.personal_epochs == "shared")


def _averaged(method: Method) -> Method:
    """FedAvg, trained as a method is."""
    return WithTraining(FedAvg(), method.options) if isinstance(method, WithTraining) else FedAvg()


def _has_cloud(method: Method) -> bool:
    return type(layers(method)[-1]).cloud is not Method.cloud


def _field(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label)
