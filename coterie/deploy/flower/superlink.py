"""Flower's SuperLink, whose control and runtime paths ask for no identity: they answer the account it runs under."""

from coterie.deploy.flower.same_account import PUBLISHED, guard


def main() -> None:
    """Stands for Flower's program of that name at the coordinator."""
    from flwr.superlink import main as served
    from flwr.superlink.cli import flower_superlink

    guard(served, PUBLISHED)
    flower_superlink()
