"""A silo's SuperNode ends when it is to."""

import importlib

import pytest

pytest.importorskip("flwr")
import flwr.supernode.cli

from coterie.deploy.flower import supernode


def test_a_supernode_that_is_interrupted_while_it_ends_does_end(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = importlib.import_module("flwr.supernode.start_client_internal")
    monkeypatch.setattr(loop, "time", loop.time)  # put back what the program replaces
    monkeypatch.setattr(supernode, "hurry", lambda: None)
    monkeypatch.setattr(loop, "_pull_and_store_message", loop._pull_and_store_message)
    monkeypatch.setenv("COTERIE_SILO", "")
    for name in ("hold", "guard", "keep_door"):
        monkeypatch.setattr(supernode, name, lambda *given: None)

    def interrupted() -> None:
        raise KeyboardInterrupt

    class Ended(Exception):
        pass

    def ended(code: int) -> None:
        raise Ended(code)

    monkeypatch.setattr(flwr.supernode.cli, "flower_supernode", interrupted)
    monkeypatch.setattr("os._exit", ended)
    with pytest.raises(Ended, match="1"):
        supernode.main()
