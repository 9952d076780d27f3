"""What has a name in a study: the things that come with Coterie, and those that installed packages bring."""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple, TypeVar

from coterie.errors import BadInput, shown
from coterie.version import VERSION

T = TypeVar("T")


class Origin(NamedTuple):
    """Who brings a thing: a package and its version, or a file and its checksum."""

    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


OWN = Origin("coterie", VERSION)


class Registry(Mapping[str, T]):
    """Things of one kind by name; what is elsewhere is imported when it is asked for, and not before."""

    def __init__(
        self, kind: str, group: str, packaged: Mapping[str, str | T], fits: Callable[[Any], bool], form: str
    ) -> None:
        """A packaged thing is given as it is, or by its place `module:attribute`, as the entry points of `group` are.

        `form` says in an error what `fits` looks for.
        """
        self.kind, self.group, self.fits, self.form = kind, group, fits, form
        self.packaged: dict[str, EntryPoint | T] = {
            name: EntryPoint(name, thing, group) if isinstance(thing, str) else thing
            for name, thing in packaged.items()
        }
        self.lent: tuple[Origin, Mapping[str, T]] = (OWN, {})  # to this process alone

    def __iter__(self) -> Iterator[str]:
        return iter(self._names())

    def __len__(self) -> int:
        return len(self._names())

    def __contains__(self, name: object) -> bool:
        return name in self._names()

    def __getitem__(self, name: str) -> T:
        origin, thing = self._source(name)
        if not isinstance(thing, EntryPoint):
            return thing
        try:
            loaded: T = thing.load()
        except Exception as error:  # in the code of others anything may fail
            if origin == OWN:
                raise
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise BadInput(f"{self.kind} '{name}': {origin} cannot be imported ({why}); repair or remove it") from None
        if not self.fits(loaded):
            raise BadInput(f"{self.kind} '{name}': {origin} has {shown(loaded)}, not {self.form}; repair or remove it")
        return loaded

    def origin(self, name: str) -> Origin | None:
        """Who brings the thing of that name, where that is not Coterie itself."""
        origin = self._source(name)[0] if name in self else OWN
        return None if origin == OWN else origin

    def name_of(self, thing: T) -> str | None:
        """The name of a thing, without an import: what is not imported yet cannot have made it."""
        return next((name for name in self for _, each in self._sources(name) if _already(each) is thing), None)

    def _names(self) -> dict[str, None]:
        """Every name once, packaged ones first."""
        return dict.fromkeys([*self.packaged, *(each.name for _, each in installed(self.group)), *self.lent[1]])

    def _source(self, name: str) -> "tuple[Origin, EntryPoint | T]":
        """What a name stands for, and who says so."""
        found = self._sources(name)
        if len(found) > 1:
            both = " and by ".join(str(origin) for origin, _ in found)
            raise BadInput(f"{self.kind} '{name}': brought by {both}; rename or uninstall one of them")
        if not found:
            raise KeyError(name)
        return found[0]

    def _sources(self, name: str) -> "list[tuple[Origin, EntryPoint | T]]":
        found: list[tuple[Origin, EntryPoint | T]] = []
        if name in self.packaged:
            found.append((OWN, self.packaged[name]))
        found += [(origin, each) for origin, each in installed(self.group) if each.name == name]
        origin, things = self.lent
        return [*found, (origin, things[name])] if name in things else found


@cache
def installed(group: str) -> list[tuple[Origin, EntryPoint]]:
    """What installed packages bring: looked up once, for it reads the metadata of every package."""
    # Made anew: where the package importlib_metadata was imported, they are of a class of its own.
    return [
        (Origin(each.dist.name, each.dist.version), EntryPoint(each.name, each.value, each.group))
        for each in entry_points(group=group)
        if each.dist is not None
    ]


def _already(thing: Any) -> Any:
    """A thing that may be elsewhere, if its module has been imported."""
    return getattr(sys.modules.get(thing.module), thing.attr, None) if isinstance(thing, EntryPoint) else thing
