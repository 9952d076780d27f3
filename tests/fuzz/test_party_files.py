"""A party's own files, altered: policy, ledger, private state, settings. Read, or refused in one line."""

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing import fuzz, scratch, survives
from hypothesis import example
from hypothesis import strategies as st
from mutate import bytes_like, names, numbers

from coterie.commands.main import app
from coterie.deploy.home import NODES, json_table, nodes, settings
from coterie.deploy.ledger import FILE as LEDGER
from coterie.deploy.ledger import HEAD, START, Ledger
from coterie.deploy.messages import Request
from coterie.deploy.parties import check_host, check_name
from coterie.deploy.policy import FILE as POLICY
from coterie.deploy.policy import Policy, policy_text, read_policy
from coterie.deploy.vault import COMMITTED, TENTATIVE, Vault
from coterie.methods.scaffold import ChangeUp, Control
from coterie.personal.export import file_name

values = st.recursive(
    numbers | names | st.none() | st.booleans(), lambda inner: st.lists(inner, max_size=3), max_leaves=4
)


def _toml(value: Any) -> str:
    return json.dumps(value).replace("NaN", "nan").replace("Infinity", "inf")


policies = st.dictionaries(st.sampled_from(list(Policy.__dataclass_fields__)) | names, values, max_size=3).map(
    lambda table: "".join(f"{json.dumps(key)} = {_toml(value)}\n" for key, value in table.items()).encode(
        errors="replace"
    )
)


@fuzz(400, st.one_of(policies, policies, bytes_like(policy_text().encode())))
@example(b"fields = " + b"[" * 50_000)
def test_a_policy_is_read_or_refused(content: bytes) -> None:
    with scratch() as folder:
        (folder / POLICY).write_bytes(content)
        policy = survives(lambda: read_policy(folder))
    assert policy is None or (policy.smallest_cohort >= 1 and policy.rounds >= 1 and policy.largest_upload >= 1)


@cache
def ledger() -> bytes:
    with scratch() as folder:
        Ledger(folder).record(Request("train", "north", "run", 0), ChangeUp(dw=torch.zeros(1, 3), dc=torch.zeros(1, 3)))
        return (folder / LEDGER).read_bytes()


@st.composite
def chains(draw: Any) -> tuple[bytes, bytes]:
    """A ledger by somebody who knows how to chain it: every hash is right, the rest may be anything."""
    lines, last = list[str](), START
    for line in ledger().decode().splitlines():
        entry = json.loads(line)
        for key in draw(st.lists(st.sampled_from(sorted(entry)), max_size=2)):
            entry[key] = draw(values)
        entry["before"] = last
        entry.pop("hash", None)
        entry["hash"] = last = hashlib.sha256(json.dumps(entry, sort_keys=True).encode()).hexdigest()
        lines.append(json.dumps(entry))
    return "\n".join(lines).encode(), json.dumps({"entries": len(lines), "hash": last}).encode()


heads = bytes_like(json.dumps({"entries": 2, "hash": START}).encode())
altered = st.tuples(st.deferred(lambda: bytes_like(ledger())), heads)


@fuzz(400, st.one_of(chains(), altered))
@example((b"\xff\xfe{}", b"{}"))
@example((b"[" * 100_000, b"{}"))
@example((b"", b"[" * 100_000))
def test_a_ledger_is_shown_or_is_said_to_be_altered(content: tuple[bytes, bytes]) -> None:
    with scratch() as folder:
        (folder / LEDGER).write_bytes(content[0])
        (folder / HEAD).write_bytes(content[1])
        entries = survives(lambda: Ledger(folder).entries())
        if entries is not None:
            survives(lambda: app(["silo", "ledger", str(folder)], standalone_mode=False))


@cache
def state() -> bytes:
    with scratch() as folder:
        Vault(folder, "run").keep(Control(c=torch.zeros(1, 3)), 2)
        return (folder / "run" / TENTATIVE).read_bytes()


@fuzz(
    400,
    st.deferred(lambda: bytes_like(state(), front=120)),
    st.deferred(lambda: bytes_like(state(), front=120)),
    st.binary(max_size=40),
)
@example(b"", b"", b'["request"]\nx')
@example(b"", b"", b"[" * 100_000)
def test_a_private_state_is_loaded_or_refused(tentative: bytes, committed: bytes, answer: bytes) -> None:
    with scratch() as folder:
        vault = Vault(folder, "run")
        vault.folder.mkdir()
        for name, content in ((TENTATIVE, tentative), (COMMITTED, committed), ("answer-train", answer)):
            (vault.folder / name).write_bytes(content)
        private = survives(lambda: vault.load(Control(c=torch.zeros(1, 3))))
        assert private is None or (private.c.shape == (1, 3) and private.c.is_floating_point())
        survives(lambda: vault.settle(2, 3))
        vault.answered("train", "digest")


def test_a_whole_private_state_is_loaded() -> None:
    with scratch() as folder:
        vault = Vault(folder, "run")
        vault.keep(Control(c=torch.ones(1, 3)), 0)
        vault.settle(0, 1)
        assert vault.load(Control(c=torch.zeros(1, 3))).c.tolist() == [[1, 1, 1]]


SETTINGS = json.dumps({"name": "north", "host": "127.0.0.1", "port": 9443, "inner": 9443, "proxy": False}).encode()
tables = st.dictionaries(st.sampled_from(["name", "host", "port", "inner", "proxy"]), values, max_size=5)


@fuzz(
    250, st.one_of(tables.map(lambda table: json.dumps(table).encode()), bytes_like(SETTINGS), st.just(b"[" * 100_000))
)
def test_settings_are_read_or_refused(content: bytes) -> None:
    with scratch() as folder:
        (folder / "settings.json").write_bytes(content)
        (folder / NODES).mkdir(parents=True)
        (folder / NODES / "north").write_bytes(content[:10])
        own = survives(lambda: settings(folder, name=str, inner=int))
        assert own is None or (isinstance(own["host"], str) and isinstance(own["name"], str))
        survives(lambda: nodes(folder))
        survives(lambda: json_table(folder / "settings.json", "write it again"))


@fuzz(300, names)
def test_a_name_stays_in_its_folder(name: str) -> None:
    made = file_name(name)
    assert made and Path(made).name == made and made not in (".", "..") and len(made.encode()) <= 100
    assert "\0" not in made and not made.startswith(".")
    survives(lambda: check_name(name))
    survives(lambda: check_host(name))
    with scratch() as folder:
        assert Vault(folder, name).folder.parent == folder


@pytest.mark.parametrize("name", ["a/b", "..", "", "a\n", "A", "é", "a" * 60, "-a", "a_b"])
def test_a_silo_is_not_called_that(name: str) -> None:
    with pytest.raises(Exception, match="silo name"):
        check_name(name)
