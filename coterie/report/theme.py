"""How the report looks: the colours of the methods, the style sheet, and the script that draws the figures."""

from collections.abc import Iterable
from dataclasses import dataclass

# Okabe and Ito's colours, told apart by colour-blind readers, less the two that vanish on a white or a black page;
# then a few more that need the help of a dash.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C8C8C", "#8E6BBF", "#999933", "#A85A44"]
SAFE = 7
DASHES = ["solid", "dot", "dashdot", "longdash"]


@dataclass(frozen=True)
class Ink:
    """How one method is drawn in every figure; past the safe colours the dash tells methods apart."""

    colour: str
    dash: str

    def faded(self, opacity: float) -> str:
        """The colour, see-through."""
        red, green, blue = (int(self.colour[i : i + 2], 16) for i in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def inks(methods: Iterable[str]) -> dict[str, Ink]:
    """An ink for every method, in study order."""
    return {method: Ink(PALETTE[i % len(PALETTE)], DASHES[i // SAFE % len(DASHES)]) for i, method in enumerate(methods)}


CSS = """
:root {
  color-scheme: light dark;
  --page: #fbfbfa; --card: #ffffff; --ink: #1d2329; --soft: #5b6570; --line: #e2e5e8; --grid: #e9ecef;
  --good: #00694c; --good-wash: #e6f4ee; --code: #f3f4f5; --accent: #00578a;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #14171a; --card: #1b1f23; --ink: #e4e7ea; --soft: #9aa4ae; --line: #2e343a; --grid: #2a3036;
    --good: #5fd3a8; --good-wash: #17322a; --code: #22272c; --accent: #7cc0ec;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.6 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1100px; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
header { margin-bottom: 2.5rem; }
h1 { font-size: clamp(1.6rem, 4vw, 2.2rem); line-height: 1.2; letter-spacing: -0.015em; margin: 0 0 0.75rem; }
h2 { font-size: 1.25rem; line-height: 1.3; letter-spacing: -0.005em; margin: 0 0 0.35rem; }
h3 { font-size: 1rem; margin: 0 0 0.25rem; }
h1, h2, h3, p { overflow-wrap: anywhere; }
p { margin: 0 0 0.75rem; max-width: 46rem; }
.kicker {
  color: var(--soft); font-size: 0.8rem; letter-spacing: 0.08em; text-transform: uppercase; margin: 0 0 0.25rem;
}
.lead { font-size: 1.1rem; }
.note { color: var(--soft); font-size: 0.9rem; }
section {
  background: var(--card); border: 1px solid var(--line); border-radius: 10px;
  padding: 1.25rem 1.5rem 1.5rem; margin: 0 0 1.5rem;
}
.scroll { overflow-x: auto; max-width: 100%; -webkit-overflow-scrolling: touch; }
.scroll.tall { max-height: 30rem; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.45rem 0.55rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
thead th {
  white-space: normal; line-height: 1.25; color: var(--soft); font-weight: 600; font-size: 0.82rem;
  vertical-align: bottom; background: var(--card);
}
.tall thead th { position: sticky; top: 0; z-index: 1; }
th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }
.tall thead th:first-child { z-index: 2; }
tbody th { font-weight: 600; max-width: 16rem; overflow: hidden; text-overflow: ellipsis; }
tbody tr:last-child > * { border-bottom: 0; }
td.best { color: var(--good); background: var(--good-wash); font-weight: 700; }
td.best::after { content: "\\2009★"; font-size: 0.7em; vertical-align: 0.25em; }
.dot { display: inline-block; width: 0.65em; height: 0.65em; border-radius: 50%; margin-right: 0.5em; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.25rem; }
.figures > *, .figure { min-width: 0; }
.figures > * { max-width: 44rem; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--accent); font-size: 0.92rem; }
details > .scroll { margin-top: 0.5rem; }
pre {
  background: var(--code); border-radius: 6px; padding: 0.8rem 1rem; margin: 0 0 1rem; overflow-x: auto;
  font: 0.85rem/1.5 ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace;
}
footer { color: var(--soft); font-size: 0.85rem; }
@media (max-width: 600px) {
  main { padding: 1.25rem 0.75rem 2.5rem; }
  section { padding: 1rem 0.9rem; border-radius: 8px; }
}
@media print { section { break-inside: avoid; } .scroll.tall { max-height: none; } }
"""

# Draws every figure in the colours of the theme, and again when the theme changes. On a touch screen a finger on a
# figure scrolls the page rather than zooming. Plotly's own default is a button that sends the figure's data to its
# makers' cloud: what a report of private silos holds must stay in it.
JS = """
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const touch = window.matchMedia("(pointer: coarse)").matches;
  const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const themed = layout => {
    const set = {"font.color": colour("--ink"), "font.family": getComputedStyle(document.body).fontFamily,
      "hoverlabel.bgcolor": colour("--card"), "hoverlabel.bordercolor": colour("--line"),
      "hoverlabel.font.color": colour("--ink"), "modebar.color": colour("--soft"),
      "modebar.activecolor": colour("--ink"), "modebar.bgcolor": "rgba(0,0,0,0)"};
    for (const key of Object.keys(layout)) if (/^[xy]axis[0-9]*$/.test(key)) {
      set[key + ".gridcolor"] = colour("--grid");
      set[key + ".linecolor"] = colour("--line");
      set[key + ".zerolinecolor"] = colour("--line");
      set[key + ".tickcolor"] = colour("--line");
    }
    (layout.sliders || []).forEach((_, i) => {
      set[`sliders[${i}].bgcolor`] = colour("--soft");
      set[`sliders[${i}].activebgcolor`] = colour("--accent");
      set[`sliders[${i}].bordercolor`] = colour("--line");
      set[`sliders[${i}].tickcolor`] = colour("--soft");
    });
    return set;
  };
  const plots = [...document.querySelectorAll(".figure")].map(box => {
    const figure = JSON.parse(box.querySelector("script").textContent);
    if (touch) figure.layout.dragmode = false;
    figure.config = {responsive: true, showSendToCloud: false, plotlyServerURL: "", displaylogo: false,
      displayModeBar: touch ? false : "hover",
      modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"]};
    const plot = box.querySelector(".plot");
    Plotly.newPlot(plot, figure).then(() => Plotly.relayout(plot, themed(figure.layout)));
    return plot;
  });
  dark.addEventListener("change", () => plots.forEach(plot => Plotly.relayout(plot, themed(plot.layout))));
})();
"""
