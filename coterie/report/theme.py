"""How the report looks: the colours of the methods, the style sheet, and the script that draws the figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources

# Okabe and Ito's colours, distinct to colour-blind readers, less the two that vanish on a white or a black page;
# then a few more that need the help of a dash.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#8E6BBF", "#999933", "#A85A44"]
SAFE = 7
DASHES = ["solid", "dot", "dashdot", "longdash"]


@dataclass(frozen=True)
class Ink:
    """How one method is drawn in every figure; past the safe colours the dash differs."""

    colour: str
    dash: str

    def faded(self, opacity: float) -> str:
        """The colour, see-through."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def inks(methods: Iterable[str]) -> dict[str, Ink]:
    """An ink for every method, in study order."""
    return {method: Ink(PALETTE[i % len(PALETTE)], DASHES[i // SAFE % len(DASHES)]) for i, method in enumerate(methods)}


def group_colour(group: int) -> str:
    """The colour of a group of silos; grey for one that is in none."""
    return PALETTE[group % len(PALETTE)] if group >= 0 else "#9AA4AE"


def asset(name: str) -> str:
    """A style sheet or a script of the page."""
    return (resources.files("coterie") / "report" / name).read_text("utf-8")
