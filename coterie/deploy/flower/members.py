"""Who may connect: keeps the nodes that Flower has registered in line with the public keys in `members/`."""

from collections.abc import Callable
from pathlib import Path

from coterie.deploy.flower import commands
from coterie.deploy.home import forget_node, nodes, write_node


class Members:
    """The keys in a coordinator's folder and the nodes of its SuperLink, by which silos are known."""

    def __init__(self, folder: Path, home: Path, say: Callable[[str], None]) -> None:
        self.folder, self.home, self.say = folder, home, say
        self.printed = set[str]()  # what is not printed again
        self.names = dict[int, str]()  # of all nodes seen so far
        self.missed = set[int]()  # nodes whose keys were not there at the last look

    def align(self) -> None:
        """Register the keys that are new, lock out those that are gone, and note every silo's node."""
        known = commands.known_keys(self.folder / commands.DATABASE)
        if known is None or not (self.folder / "members").is_dir():
            return
        noted, wanted = nodes(self.folder), self._keys()
        self.names |= {number: name for name, number in noted.items()}
        self._lock_out(
            {n for key, (n, status) in known.items() if key not in wanted.values() and status != commands.UNREGISTERED}
        )
        for name in sorted(noted.keys() | wanted.keys()):
            number, status = known.get(wanted.get(name, b""), (None, ""))
            found = self._node(name, number, status) if name in wanted else None
            if found is None:
                forget_node(self.folder, name)
            elif found != noted.get(name):
                write_node(self.folder, name, found)

    def _lock_out(self, gone: set[int]) -> None:
        """Unregister nodes at the second look: it is for good, and an editor may just be writing their keys anew."""
        for number in gone & self.missed:
            if commands.unregister(self.home, number):
                self.say(f"locked out {self.names.get(number, f'node {number}')}: its key is not in members/")
        self.missed = gone

    def _keys(self) -> dict[str, bytes]:
        """The keys in `members/` by the silos' names."""
        keys = dict[str, bytes]()
        for path in sorted((self.folder / "members").glob("*.pub")):
            try:
                keys[path.stem] = commands.key_of(path)
            except (OSError, ValueError) as error:
                self._once(f"{path}: no public key ({error}); take the one in the silo's folder")
        return keys

    def _node(self, name: str, number: int | None, status: str) -> int | None:
        """A silo's node, registered if need be; None where it cannot be by now."""
        if status == commands.UNREGISTERED:
            self._once(f"the key of {name} was locked out and is not taken again; give the silo a new one")
            return None
        if number is None:
            number = commands.register(self.home, self.folder / "members" / f"{name}.pub")
            if number is not None:
                self.say(f"registered the key of {name}")
        return number

    def _once(self, what: str) -> None:
        if what not in self.printed:
            self.printed.add(what)
            self.say(what)
