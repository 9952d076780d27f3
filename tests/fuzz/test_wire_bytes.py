"""What arrives over a wire: records, requests, answers. A rogue party is refused; nobody else's round breaks."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from loop import NAMES, job, settle
from mutate import bytes_like, names, numbers

from coterie.codec import decode, encode, encode_up
from coterie.deploy.messages import Answer, Declared, Done, Measured, Request, request
from coterie.deploy.remote import Remote, declarations
from coterie.engine.exchange import Failure
from coterie.engine.method import Cohort
from coterie.methods import METHODS
from coterie.methods.wrappers.candidates import Candidates
from coterie.models import build

COUNT = len(NAMES)
DTYPES = ["F32", "F64", "F16", "BF16", "I64", "I32", "U8", "I8", "BOOL", "F8_E4M3", "C64", "X", 3, None]


def safetensors(header: Any, data: bytes, length: int | None = None) -> bytes:
    """The format's frame around any header."""
    text = json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


offsets = st.integers(-1, 64) | st.sampled_from([2**31, 10**12, 2**63 - 1, 2**63])
entry = st.fixed_dictionaries(
    {},
    optional={
        "dtype": st.sampled_from(DTYPES),
        "shape": st.lists(offsets, max_size=3) | numbers,
        "data_offsets": st.lists(offsets, max_size=3) | numbers,
    },
)
fields = (
    st.sampled_from(["w", "u", "theta", "core", "picks", "weights", "delta", "loss", "sizes", "__metadata__", "w.x"])
    | names
)
headers = st.dictionaries(fields, entry | numbers, max_size=3) | st.lists(numbers, max_size=2) | numbers | names
made = st.builds(safetensors, headers, st.binary(max_size=40), st.none() | offsets.map(lambda n: max(n, 0)))


@cache
def exchanged(name: str) -> tuple[Any, Any, Any, Any, tuple[bytes, ...], tuple[bytes, ...]]:
    """A method's first round between three small silos: what went down and what came up."""
    made_job = job(name)
    method, model, roster = made_job.built()
    if method.refusal(roster, model) is not None:
        made_job = replace(made_job, model={"name": "linear"})
        method, model, roster = made_job.built()
    server, cohort = method.open(roster, model), Cohort.everyone(roster, model, 0)
    down = method.send(server, cohort)
    with scratch() as folder:
        sides = settle(folder, smallest=1)  # of FedALA's passes one is over a row
        bodies = tuple(encode(down.one(place)) for place in range(COUNT))
        asked = Request("train", "", "run", 0, cohort=COUNT, job=made_job)
        ups = tuple(sides[n].answer(replace(asked, silo=n, body=b)).body for n, b in zip(NAMES, bodies, strict=True))
    assert all(ups) or not method.up.__dataclass_fields__
    return made_job, method, model, roster, bodies, ups


@st.composite
def edited(draw: Any, valid: bytes) -> bytes:
    """A valid record with a field renamed, left out, retyped, reshaped, or with other numbers."""
    import safetensors.torch as store

    named = store.load(valid)
    if not named:
        return draw(made)
    name = draw(st.sampled_from(sorted(named)))
    tensor = named[name]
    kind = draw(st.sampled_from(["rename", "drop", "dtype", "reshape", "value", "grow", "extra"]))
    if kind == "rename":
        named[draw(names.filter(lambda n: n != "__metadata__" and n.isascii()))] = named.pop(name)
    elif kind == "drop":
        del named[name]
    elif kind == "dtype":
        named[name] = tensor.to(
            draw(st.sampled_from([torch.float64, torch.float16, torch.int64, torch.bool, torch.uint8, torch.float32]))
        )
    elif kind == "reshape":
        named[name] = tensor.reshape(draw(st.sampled_from([(-1,), (1, -1), (1, 1, -1), (-1, 1)])))
    elif kind == "value":
        fill = draw(st.sampled_from([-1, 0, 1, 99, 2**40]) if not tensor.is_floating_point() else st.floats(width=32))
        named[name] = torch.full_like(tensor, fill)
    elif kind == "grow":
        named[name] = (
            torch.cat([tensor, tensor], draw(st.integers(0, max(tensor.ndim - 1, 0)))) if tensor.ndim else tensor[None]
        )
    else:
        named["more"] = tensor.clone()
    return store.save({n: t.contiguous() for n, t in named.items()})


def records(place: int) -> st.SearchStrategy[tuple[str, bytes]]:
    """A method and bytes that might have been what it sent (4: down, 5: up)."""
    return st.sampled_from(list(METHODS)).flatmap(
        lambda name: st.tuples(
            st.just(name),
            st.one_of(
                edited(exchanged(name)[place][0]),
                edited(exchanged(name)[place][0]),
                bytes_like(exchanged(name)[place][0], front=200),
                made,
            ),
        )
    )


class Canned:
    """A transport whose silos say what they were told to."""

    def __init__(self, said: Mapping[str, bytes]) -> None:
        self.said = said

    def exchange(self, requests: Mapping[str, Request], timeout: float) -> dict[str, Answer | Failure]:
        return {name: Answer(self.said[name], to=asked.digest()) for name, asked in requests.items()}


@fuzz(900, records(5), st.integers(0, COUNT - 1))
def test_a_rogue_upload_is_refused_or_is_like_the_others(rogue: tuple[str, bytes], place: int) -> None:
    name, body = rogue
    made_job, method, model, roster, _, ups = exchanged(name)
    said = {silo: body if i == place else ups[i] for i, silo in enumerate(NAMES)}
    engine = Remote("run", made_job, method, model, Canned(said))
    server, cohort = method.open(roster, model), Cohort.everyone(roster, model, 0)
    replies = engine.train(cohort, method.send(server, cohort))
    assert len(replies.cohort.ids) + len(replies.failures) == COUNT
    assert set(replies.failures) <= {NAMES[place]}
    if not all(t.isfinite().all() for t in replies.up.tensors().values()):
        return  # whether its numbers count is judged elsewhere
    after = method.receive(server, replies.cohort, replies.up)
    method.send(after, Cohort.everyone(roster, model, 1))


@fuzz(500, records(4))
def test_what_a_server_sends_is_taken_or_refused(sent: tuple[str, bytes]) -> None:
    name, body = sent
    _, method, model, _, _, _ = exchanged(name)
    down = survives(lambda: decode(method.down, body, model.dtype, rows=1, d=model.width, N=COUNT, m=COUNT))
    assert down is None or decode(method.down, encode(down)).tensors().keys() == down.tensors().keys()


@cache
def of_candidates(name: str) -> tuple[type[Any], int, bytes]:
    """The type of what candidates are sent, the columns of a model, and such a record."""
    _, inner, model, roster, _, _ = exchanged(name)
    method = Candidates(inner, (1.0, 0.3))
    down = method.send(method.open(roster, model), Cohort.everyone(roster, model, 0))
    return method.down, model.width, encode(down.one(0))


@st.composite
def misnested(draw: Any, valid: bytes) -> bytes:
    """A valid record that holds records, some of its fields under other names, or missing, or there twice."""
    import safetensors.torch as store

    named = store.load(valid)
    inner = sorted({name.split(".")[-1] for name in named})
    path = st.lists(st.sampled_from(["c0", "c1", "c2", "", *inner]), min_size=1, max_size=3).map(".".join)
    for _ in range(draw(st.integers(1, 2))):
        tensor = named[draw(st.sampled_from(sorted(named)))].clone()
        if draw(st.booleans()) and len(named) > 1:
            del named[draw(st.sampled_from(sorted(named)))]
        named[draw(path)] = tensor
    return store.save(named)


NESTED = st.sampled_from(["fedavg", "apple", "fedem", "scaffold"])


@fuzz(
    400, NESTED.flatmap(lambda n: st.tuples(st.just(n), misnested(of_candidates(n)[2]) | edited(of_candidates(n)[2])))
)
def test_a_record_that_holds_records_is_exactly_that_or_refused(sent: tuple[str, bytes]) -> None:
    kind, width, valid = of_candidates(sent[0])
    taken = survives(lambda: decode(kind, sent[1], rows=1, d=width, N=COUNT, m=COUNT))
    if taken is not None:
        assert taken.tensors().keys() == decode(kind, valid).tensors().keys()


DECLARED = Declared(
    sizes=torch.tensor([[6, 2, 2]]),
    sample=torch.tensor([[5]]),
    classes=torch.tensor([3]),
    outputs=torch.tensor([3]),
    shares=torch.tensor([[30, 70]]),
)
MEASURED = Measured(loss=torch.zeros(1, 2, dtype=torch.float64), accuracy=torch.zeros(1, 2, dtype=torch.float64))


def near(record: Any) -> st.SearchStrategy[bytes]:
    valid = encode_up(record)
    return st.one_of(edited(valid), edited(valid), bytes_like(valid, front=200), made)


@fuzz(300, near(DECLARED))
@example(encode_up(DECLARED.replace(classes=torch.tensor([[3, 4]]))))
@example(encode_up(DECLARED.replace(sizes=torch.tensor([[float("nan")] * 3]))))
def test_a_declaration_is_taken_or_is_a_failure(body: bytes) -> None:
    found, failures = declarations(Canned({"a": body}), "run", ["a"], 1.0)
    assert len(found) + len(failures) == 1
    for each in found.values():
        assert each.sizes[0] > 0 and min(*each.sizes, *each.sample, each.classes, each.outputs) >= 0
        assert not each.sample or each.outputs > 0
        assert len(each.shares) <= 2 and all(0 <= share <= 100 for share in each.shares)


@fuzz(300, near(MEASURED), near(Done()))
def test_a_measure_is_taken_or_is_a_failure(body: bytes, done: bytes) -> None:
    made_job, method, model, roster, _, _ = exchanged("fedavg")
    good = encode_up(MEASURED)
    engine = Remote("run", made_job, method, model, Canned({"north": body, "south": good, "east": good}))
    server, cohort = method.open(roster, model), Cohort.everyone(roster, model, 0)
    down = method.send(server, cohort)
    told = engine.measure(cohort, down, ("validation", "test"))
    assert all(len(values) == COUNT for values in told.values.values())
    assert np.isfinite(told.values["test", "loss"][1:]).all()
    Remote("run", made_job, method, model, Canned(dict.fromkeys(NAMES, done))).keep_models(cohort, down, (1,))


@fuzz(150, records(5))
def test_a_rogue_newcomer_ends_nothing(rogue: tuple[str, bytes]) -> None:
    name, body = rogue
    made_job, method, model, roster, _, _ = exchanged(name)
    engine = Remote("run", made_job, method, model, Canned({"late": body}))
    declared = SimpleNamespace(sizes=(6, 2, 2))
    engine.take_in("late", declared, method.open(roster, model), ("test",))  # type: ignore[arg-type]


# Requests, as the silo reads them

HEAD = json.loads(replace(Request("train", "north", "run", 0, cohort=COUNT), job=job("fedavg")).head())
values = st.recursive(
    numbers | names | st.none() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=2),
    max_leaves=4,
)


@st.composite
def heads(draw: Any) -> str:
    """A request's head with a value or two replaced."""
    head = json.loads(json.dumps(HEAD))
    for _ in range(draw(st.integers(1, 2))):
        table = draw(
            st.sampled_from([head, head["job"], head["job"]["train"], head["job"]["model"], head["job"]["options"]])
            if isinstance(head.get("job"), dict)
            and all(isinstance(head["job"].get(k), dict) for k in ("train", "model", "options"))
            else st.just(head)
        )
        key = draw(st.sampled_from(sorted(table)) if table and draw(st.integers(0, 4)) else names)
        if draw(st.integers(0, 5)):
            table[key] = draw(values)
        else:
            table.pop(key, None)
    return json.dumps(head)


@fuzz(
    900,
    st.one_of(
        heads(),
        heads(),
        names,
        st.just("[" * 100_000),
        bytes_like(json.dumps(HEAD).encode()).map(lambda b: b.decode(errors="replace")),
    ),
)
@example(json.dumps(HEAD | {"run": "\ud800"}))
def test_a_request_is_answered_or_refused(head: str) -> None:
    body = exchanged("fedavg")[4][0]
    asked = survives(lambda: request(head, body))
    training = survives(lambda: asked.job.training) if asked is not None and asked.job is not None else None
    if asked is None or (training is not None and training.local_epochs > 50):
        return
    side = _side()
    answer = side.answer(asked)
    assert bool(answer.refusal) != bool(answer.body)
    assert {path.name for path in side.folder.iterdir()} <= {
        "data.npz",
        "silo.toml",
        "ledger.jsonl",
        "ledger.head",
        "events.log",
        ".lock",
        "state",
        "models",
        "spent.json",
    }
    assert {path.name for path in side.folder.parent.iterdir()} == set(NAMES)


@pytest.fixture(autouse=True, scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("silos")
    _side.cache_clear()
    HOME.append(folder)
    yield
    HOME.clear()


HOME: list[Path] = []


@cache
def _side() -> Any:
    return settle(HOME[0])["north"]


# Models on disk

MODEL = {"name": "mobilenet_v2", "width": 0.1}


@cache
def weights() -> bytes:
    import safetensors.torch as store

    return store.save(dict(build(MODEL, (3, 8, 8), 4)[0]().state_dict()))


@fuzz(100, st.deferred(lambda: bytes_like(weights(), front=400)) | made)
def test_weights_from_a_file_are_taken_or_refused(content: bytes) -> None:
    with scratch() as folder:
        (folder / "w.safetensors").write_bytes(content)
        survives(lambda: build(MODEL | {"weights": str(folder / "w.safetensors")}, (3, 8, 8), 4)[0]())
