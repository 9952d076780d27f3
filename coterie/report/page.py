"""The report of a study: one HTML file that needs nothing else and opens offline."""

from html import escape
from pathlib import Path

from coterie.errors import BadInput
from coterie.report import html
from coterie.report.canvas import plotly_objects
from coterie.report.decision import decision
from coterie.report.sections import PARTS
from coterie.report.theme import asset
from coterie.runs.read import Run
from coterie.version import VERSION

# The browser itself refuses to load anything from outside, whatever a name in the data might contain.
POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:; "
    "form-action 'none'; base-uri 'none'"
)


def render(run: Run, out: Path) -> None:
    """Write the report of a run to `out`."""
    page = page_of(run, out.parent)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(page, encoding="utf-8")


def sizes(run: Run) -> dict[str, str]:
    """The size of a study at a glance."""
    results = run.results
    members = results[~results["measure"].str.endswith("_unseen")]
    return {
        "Silos": f"{members['silo'].nunique():,}",
        "Methods": f"{len(run.methods):,}",
        "Rounds": f"{int(results['round'].max()):,}",
        "Seeds": f"{results['seed'].nunique():,}",
        "Computed on": escape(str(run.about.get("device") or "")),
    }


def page_of(run: Run, beside: Path | None = None) -> str:
    """The report as HTML, for a folder: none is that of the run."""
    if not run.methods:
        raise BadInput("there are no results yet; the report needs those of at least one method")
    made = {"decision": ("The decision", decision(run, beside))}
    made |= {
        key: (title, "\n".join(filter(None, (make(run) for make in each)))) for key, (title, each) in PARTS.items()
    }
    shown = {key: html.part(key, title, body) for key, (title, body) in made.items() if body}
    links = "".join(f"<a href='#{key}'>{key.capitalize()}</a>" for key in shown)
    body = f"<nav aria-label='Parts of the report'>{links}</nav>" + "\n".join(shown.values())
    header = f"<p class='kicker'>Coterie study</p><h1>{escape(run.name)}</h1>{html.facts('facts', sizes(run))}"
    if not run.finished:
        header += "<p class='note unfinished'>This run has not finished: this is what there is so far.</p>"
    return shell(run.name, header, body, asset("page.js"), POLICY)


def shell(title: str, header: str, body: str, script: str, policy: str) -> str:
    """A page with everything in it; `title` is text, the others are HTML and JavaScript."""
    plotly_objects()
    from plotly.offline import get_plotlyjs

    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{escape(title)} · Coterie</title>
<style>{asset("page.css")}</style>
<script>{get_plotlyjs()}</script>
</head>
<body>
<main>
<header>
{header}
<noscript><p class="note">The figures need JavaScript; the tables do not.</p></noscript>
</header>
{body}
<footer>Written by Coterie {escape(VERSION)}. This page loads nothing from elsewhere.</footer>
</main>
<script>{script}</script>
</body>
</html>
"""
