"""A run as it goes on, in the browser: a small server on this machine alone, asked every two seconds."""

import hashlib
import json
import sys
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from coterie.errors import BadInput
from coterie.measure.metrics import main_measure
from coterie.report import figures
from coterie.report.page import POLICY, page_of, shell
from coterie.report.sections import score_table
from coterie.report.table import summary_cells
from coterie.report.theme import asset, inks
from coterie.runs.folder import CHECKPOINTS
from coterie.runs.read import Run, read_run, seeds_of

BODY = """<section><h2>Progress</h2><div id="progress"></div></section>
<section><h2>Over the rounds</h2><div class="figure"><div class="plot" id="curves" style="height:460px"></div></div>
</section>
<section><h2>Scores so far</h2><div id="scores"></div></section>"""


class Live(ThreadingHTTPServer):
    """Serves one folder to this machine; the system chooses the port."""

    daemon_threads = True
    body = BODY

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.read()  # a folder that cannot be read is an error before a browser opens
        super().__init__(("127.0.0.1", 0), PageHandler)

    def read(self) -> Run:
        """The run as it is now."""
        return read_run(self.folder)

    def title(self) -> str:
        """What the page is called."""
        return self.read().name

    def status(self, run: Run) -> str:
        """How far the run is."""
        if run.finished:
            return "Finished. " + " ".join((run.verdict or {}).get("words", {}).get("consortium", []))
        return "Running, or stopped before its end." if run.methods else "No round has been measured yet."

    def version(self) -> str:
        """Changes whenever the run has written."""
        return written(self.folder)

    def always(self) -> dict[str, str]:
        """Parts of the page by their ids that change though nothing was written."""
        return {}

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that left before its answer came is no error to report."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)

    @property
    def address(self) -> str:
        """Where a browser finds it."""
        return f"http://127.0.0.1:{self.server_port}/"


class PageHandler(BaseHTTPRequestHandler):
    """The page, its state, and the whole report."""

    server: Live

    def do_GET(self) -> None:
        """Answer a browser on this machine; a page of another site that a name was bent to point here is refused."""
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")}:
            self.send_error(403)
            return
        asked = urlsplit(self.path)
        try:
            if asked.path == "/":
                self._answer(page(self.server), "text/html")
            elif asked.path == "/state":
                known = parse_qs(asked.query).get("known", [""])[0]
                self._answer(json.dumps(state(self.server, known)), "application/json")
            elif asked.path == "/report":
                self._answer(page_of(self.server.read()), "text/html")
            else:
                self.send_error(404)
        except BadInput as error:
            self._answer(str(error), "text/plain", 503)

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a line every two seconds would drown the terminal."""

    def _answer(self, text: str, kind: str, code: int = 200) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)


def page(live: Live) -> str:
    """What the browser keeps open."""
    title = live.title()
    header = (
        "<p class='kicker'>Coterie, live</p>"
        f"<h1>{escape(title)}</h1><p class='lead' id='status' role='status'>Reading…</p>"
        "<p><a href='/report' target='_blank'>The whole report as of now</a></p>"
    )
    return shell(title, header, live.body, asset("page.js") + asset("live.js"), f"{POLICY}; connect-src 'self'")


def state(live: Live, known: str) -> dict[str, Any]:
    """What the page shows, or of a version that is known already only what changes by itself."""
    version, always = live.version(), live.always()
    if version == known:
        return {"version": version, **always}
    run = live.read()
    drawn = {}
    if run.methods:
        measure = main_measure(run.results)
        drawn["curves"] = json.loads(figures.curves(run.results, inks(run.methods), measure).to_json())
    return {
        "version": version,
        "status": live.status(run),
        "progress": _progress(run),
        "scores": score_table(*summary_cells(run.methods, run.verdict, run.own)) if run.methods else "",
        "figures": drawn,
        **always,
    }


def _progress(run: Run) -> str:
    """A bar for every method and seed."""
    study = run.study
    rounds = study.get("train", {}).get("rounds", 0)
    total = rounds if isinstance(rounds, int) and rounds else 1  # not known before the search
    seeds = seeds_of(study)
    done = run.results.groupby(["method", "seed"])["round"].max().to_dict() if len(run.results) else {}
    bars = ""
    for method, seed in product(study.get("methods", {}), seeds):
        rounds = int(done.get((method, seed), 0))
        name = method if len(seeds) == 1 else f"{method}, seed {seed}"
        bars += (
            f"<div class='bar'><span>{escape(name)}</span><progress max='{total}' value='{rounds}'></progress>"
            f"<span>{rounds} / {total}</span></div>"
        )
    return bars


def written(folder: Path) -> str:
    """Changes whenever the run in a folder has written."""
    files = [folder / "summary.json", *sorted((folder / CHECKPOINTS).glob("*/journal"))]
    found = [(str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files if path.exists()]
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]
