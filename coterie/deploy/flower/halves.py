"""A method's two halves in a Flower app of your own: your ClientApp with your data, your ServerApp with your loop.

No policy, no ledger and no state on disk: those come with `coterie silo` and `coterie coordinator`.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import safetensors.torch
import torch
from flwr.app import Context, Message
from torch import Tensor

from coterie.codec import decode, encode, encode_up
from coterie.data.silo import Part, Silo, check_silos
from coterie.deploy.flower.grid import answer_of, body_of, enclosed, packed, reply, unpacked
from coterie.deploy.messages import Answer, Declared, Measured, Membership
from coterie.deploy.remote import Declaration, bodies_of, declaration, records
from coterie.deploy.silo import as_measured
from coterie.deploy.vault import rebuilt
from coterie.engine.exchange import Engine, Failure, Replies
from coterie.engine.judge import judged
from coterie.engine.measuring import measured
from coterie.engine.method import Cohort, Method, local_round
from coterie.engine.rows import Model
from coterie.engine.store import Store
from coterie.engine.task import Task, task_of
from coterie.engine.training import Training
from coterie.engine.wrapper import layers
from coterie.errors import BadInput, nearest, plain, warn
from coterie.methods.wrappers.spent import privacy_of
from coterie.models.code import code_name, factory
from coterie.options import option, parse, resolved
from coterie.personal.export import save_models
from coterie.wire import Private, Up, stack

U = TypeVar("U", bound=Up)
Samples = tuple[Any, Any]  # inputs (n, ...) and labels (n,), as arrays or tensors
LOCAL = (
    "local_epochs", "batch_size", "whole_batches", "optimizer", "lr", "momentum", "weight_decay", "clip_gradient",
    "class_weight", "schedule", "schedule_at", "schedule_rounds", "schedule_factor",
)  # fmt: skip
JUDGED = ("test",)  # the split that `evaluate` measures
KEPT = "coterie.after-round-"  # what a silo keeps, in the state that Flower holds for its app


@dataclass(frozen=True, kw_only=True)
class MessageHead(Membership):
    """What a silo is sent beside a `Down`: who takes part, which round this is, and what the server has of the silo."""

    method: str
    round: int = option(0, "counted from 0", low=0)
    received: int = option(-1, "the last round of which the server has this silo's upload; -1: none", low=-1)

    def built(self, model: Any, device: str = "cpu") -> Model:
        """The model as rows."""
        return Model(factory(model, self.shape, self.outputs), self.classes, device, sample=self.shape)


class ServerHalf:
    """A method's server: makes the messages of a round, and takes in what comes back."""

    def __init__(self, method: Method, model: Any, *, seed: int = 0, norm_limit: float = 10.0) -> None:
        """`model` is an nn.Module's class or a function that makes one; `norm_limit` is that of `[train]`."""
        self.method, self.code, self.seed, self.norm_limit = method, model, seed, norm_limit
        self.round = 0  # those that are done
        self.received = dict[str, int]()  # by silo, the last round of which its upload is here
        self.heard = dict[str, list[list[float]]]()  # what the judge remembers

    def greetings(self, nodes: Iterable[int]) -> list[Message]:
        """The question to every node what its silo holds."""
        return [_message("train", "", b"", node) for node in nodes]

    def enroll(self, replies: Iterable[Message]) -> list[str]:
        """Open the federation with the silos that replied, and give their names."""
        found = dict[str, tuple[int, Declaration]]()
        for each in replies:
            answer = answer_of(each)
            if isinstance(answer, Failure) or answer.refusal:
                warn(f"node {each.metadata.src_node_id}: {_why(answer)}")
                continue
            name = plain(answer.to, 200)
            if name in found:
                raise BadInput(f"two nodes are silo '{name}'; give each silo a name of its own")
            found[name] = (each.metadata.src_node_id, declaration(decode(Declared, answer.body, rows=1)))
        if not found:
            raise BadInput("no silo has replied; wait until they are connected")
        self.nodes = {name: found[name][0] for name in sorted(found)}
        declared = {name: found[name][1] for name in sorted(found)}
        shapes = {each.sample for each in declared.values()}
        if len(shapes) > 1:
            raise BadInput(f"silos' samples have different shapes: {', '.join(map(str, sorted(shapes)))}")
        classes = max(each.classes for each in declared.values())
        self.head = MessageHead(
            method=_whole(self.method),
            names=tuple(declared),
            sizes=tuple(each.sizes[0] for each in declared.values()),
            validation=tuple(each.sizes[1] for each in declared.values()),
            seed=self.seed,
            shape=shapes.pop(),
            classes=classes,
            outputs=classes or max(each.outputs for each in declared.values()),
        )
        self.model = self.head.built(self.code)
        roster = self.head.roster()
        if reason := self.method.refusal(roster, self.model):
            raise BadInput(f"{type(self.method).__name__}: {reason}")
        self.axes = self.method.axes(roster, self.model)
        self.server = self.method.open(roster, self.model).settled()
        return list(declared)

    def messages(self, kind: str = "train", nodes: Iterable[int] | None = None) -> list[Message]:
        """What each silo is sent to `train` or to `evaluate`; `nodes`: to these alone."""
        wanted = set(self.nodes.values() if nodes is None else nodes)
        asked = [i for i, name in enumerate(self.head.names) if self.nodes[name] in wanted]
        round = self.round if kind == "train" else max(self.round - 1, 0)
        self.cohort = Cohort(torch.tensor(asked, dtype=torch.int64), round, self.head.roster(), self.model)
        self.down = self.method.send(self.server, self.cohort)
        made = []
        for name, body in bodies_of(self.cohort, self.down).items():
            head = replace(self.head, round=round, received=self.received.get(name, -1))
            made.append(_message(kind, json.dumps(asdict(head)), body, self.nodes[name]))
        return made

    def receive(self, replies: Iterable[Message]) -> dict[str, str]:
        """Take the uploads of a round in; why those of the silos named here did not count."""
        found, failures = self._read(replies, self.method.up, uploads=True)
        came = [i for i, name in enumerate(self.cohort.names) if name in found]
        cohort = replace(self.cohort, ids=self.cohort.ids[came])
        up = stack([found[name] for name in cohort.names]) if came else None
        engine = cast(Engine, self)  # of which the judge asks nothing but to settle
        counted = judged(
            self.method, engine, self.cohort.ids, self.down, Replies(cohort, up, failures), self.norm_limit, self.heard
        )
        if len(counted.cohort):
            self.server = self.method.receive(self.server, counted.cohort, counted.up).settled()
        self.received |= dict.fromkeys(counted.cohort.names, self.round)
        self.round += 1
        return {name: each.reason for name, each in counted.failures.items()}

    def settle(self, rejected: Tensor) -> None:
        """Nothing to do: a silo whose upload does not count finds so in its next message."""

    def scores(self, replies: Iterable[Message]) -> dict[str, dict[str, float]]:
        """By silo what its personal model is worth on its test samples."""
        found, _ = self._read(replies, Measured)
        return {name: {key: float(each) for key, each in record.tensors().items()} for name, record in found.items()}

    def _read(
        self, replies: Iterable[Message], kind: type[U], uploads: bool = False
    ) -> tuple[dict[str, U], dict[str, Failure]]:
        """Answers as records, and why there is none of the other silos that were asked."""
        silo_at = {self.nodes[name]: name for name in self.cohort.names}
        blobs = dict[str, bytes]()
        failures: dict[str, Failure] = {name: Failure("no reply") for name in self.cohort.names}
        for each in replies:
            name, answer = silo_at.get(each.metadata.src_node_id), answer_of(each)
            if name is None:  # Flower's own error about a node that went away
                continue
            if isinstance(answer, Failure) or answer.refusal:
                failures[name] = Failure(_why(answer))
            else:
                blobs[name] = answer.body
                failures.pop(name, None)
        found, rejected = records(blobs, kind, self.axes, self.model, uploads)
        return {name: found[name] for name in self.cohort.names if name in found}, failures | rejected


class SiloHalf:
    """A method's silo: answers the messages that a `ServerHalf` made, from data that stay here."""

    def __init__(
        self,
        method: Method,
        model: Any,
        name: str,
        train: Samples,
        *,
        validation: Samples | None = None,
        test: Samples | None = None,
        device: str = "cpu",
        **training: Any,
    ) -> None:
        """`training` are options of local training, e.g. lr=0.1, local_epochs=2, batch_size=32."""
        for key in training:
            if key not in LOCAL:
                raise BadInput(f"SiloHalf: unknown key '{key}'; {nearest(key, LOCAL)}")
        self.training = parse(Training, training, "SiloHalf")
        if (privacy := privacy_of(method)) is not None and privacy.epsilon is not None:
            raise BadInput("SiloHalf: how many rounds an epsilon is for, only the server knows; give privacy its noise")
        self.method, self.code, self.device = method, model, device
        own = _part(*train)
        rest = (Part(own.x[:0], own.y[:0]) if part is None else _part(*part) for part in (validation, test))
        self.silo = Silo(name, own, *rest)
        labels = np.concatenate([self.silo.train.y, self.silo.validation.y, self.silo.test.y])
        self.classes = int(labels.max(initial=0)) + 1 if np.issubdtype(labels.dtype, np.integer) else 0
        check_silos([self.silo], self.classes)

    def train(self, message: Message, context: Context) -> Message:
        """Train one round; the reply holds the method's upload, and what the silo keeps stays in `context.state`."""
        return self._reply(message, lambda: self._train(message, context))

    def evaluate(self, message: Message, context: Context, save: "str | Path | None" = None) -> Message:
        """Measure the personal model on test samples; `save` is a folder to write it to, for `coterie.load_model`."""
        return self._reply(message, lambda: self._evaluate(message, context, save))

    def _reply(self, message: Message, answer: Callable[[], bytes]) -> Message:
        try:
            with torch.no_grad():
                return reply(message, Answer(answer(), to=self.silo.name))
        except BadInput as error:
            warn(f"{self.silo.name}: {error}")
            return reply(message, Answer(refusal=error.public))

    def _train(self, message: Message, context: Context) -> bytes:
        head, body = _read_head(message)
        if head is None:
            return encode_up(self._declared())
        task, down, private = self._task(head, body, context)
        up, kept = local_round(self.method, task, down, private)
        for key in [key for key in context.state if key.startswith(KEPT) and key != f"{KEPT}{head.received}"]:
            del context.state[key]
        context.state[f"{KEPT}{head.round}"] = packed(encode(kept))
        return encode_up(up)

    def _evaluate(self, message: Message, context: Context, save: "str | Path | None") -> bytes:
        head, body = _read_head(message)
        if head is None:
            raise BadInput("a message arrived that holds no request")
        task, down, private = self._task(head, body, context)
        personal = self.method.personal(task, down, private)
        if save is not None:
            about = {"model": {"name": code_name(self.code)}, "shape": list(head.shape), "outputs": head.outputs}
            about |= {"method": type(self.method).__name__, "round": head.round + 1, "seed": head.seed}
            save_models(Path(save), task.model, personal, [self.silo.name], about)
        values, _ = measured(task, personal, self.method.cloud(task, down, private), JUDGED, self.training)
        return encode_up(as_measured(values, JUDGED))

    def _declared(self) -> Declared:
        silo = self.silo
        outputs = self.classes or int(np.prod(silo.train.y.shape[1:]))
        return Declared(
            sizes=torch.tensor([[len(silo.train), len(silo.validation), len(silo.test)]]),
            sample=torch.tensor(silo.train.x.shape[1:], dtype=torch.int64)[None],
            classes=torch.tensor([self.classes]),
            outputs=torch.tensor([outputs]),
        )

    def _task(self, head: MessageHead, body: bytes, context: Context) -> tuple[Task, Any, Any]:
        """This silo in a round, what it was sent, and what it has kept."""
        if head.method != (mine := _whole(self.method)):
            raise BadInput(f"the server runs {plain(head.method, 200)}, this silo {mine}; give both the same")
        if self.silo.name not in head.names:
            raise BadInput(f"'{self.silo.name}' is not among the members: {', '.join(head.names)}")
        model, roster = head.built(self.code, self.device), head.roster()
        store = Store([self.silo], model.device, model.dtype)
        model.probe(store["train"].x[:2])
        only = torch.zeros(1, dtype=torch.int64, device=model.device)
        hidden = secrets.token_hex(32)  # what noise that hides this silo's data is drawn from, never twice the same
        task = task_of(self.training, model, store, only, head.round, head.seed, secret=hidden)
        place = torch.tensor([head.names.index(self.silo.name)])
        private = _kept(context.state, head.received, self.method.enroll(roster, model, place))
        axes = self.method.axes(roster, model)
        down = decode(self.method.down, body, model.dtype, rows=1, **axes)
        return task, down.map(lambda t: t.to(model.device)), private.map(lambda t: t.to(model.device))


def _kept(state: Mapping[str, Any], received: int, template: Private) -> Any:
    """What the silo kept after the last round whose upload has counted: one that was lost leaves no trace."""
    if received < 0:
        return template
    if f"{KEPT}{received}" not in state:
        raise BadInput(f"this silo has lost what it kept after round {received + 1}: was its process started anew?")
    return rebuilt(template, safetensors.torch.load(unpacked(state[f"{KEPT}{received}"])))


def _message(kind: str, head: str, body: bytes, node: int) -> Message:
    content = enclosed("request", {"head": head}, body)
    return Message(content=content, message_type=kind, dst_node_id=node)


def _read_head(message: Message) -> tuple[MessageHead | None, bytes]:
    """The head, none of a greeting, and the body of a message."""
    try:
        text, body = str(message.content["request"]["head"]), body_of(message.content, "request")
        return (parse(MessageHead, json.loads(text), "a message") if text else None), body
    except (KeyError, TypeError, ValueError, AttributeError):
        raise BadInput("a message arrived that holds no request") from None


def _whole(method: Method) -> str:
    """A method with every value, also those that another version may have otherwise by default."""
    kinds = " around ".join(type(each).__name__ for each in layers(method))
    return f"{kinds}({resolved(method)})"


def _part(x: Any, y: Any) -> Part:
    inputs, labels = np.asarray(x), np.asarray(y)
    return Part(
        inputs.astype(np.float32 if np.issubdtype(inputs.dtype, np.floating) else np.int64),
        labels.astype(np.int64 if np.issubdtype(labels.dtype, np.integer) else np.float32),
    )


def _why(answer: Answer | Failure) -> str:
    return answer.reason if isinstance(answer, Failure) else f"refused: {answer.refusal}"
