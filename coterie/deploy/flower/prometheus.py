"""The figures of a party in Prometheus' text format, served to this machine alone."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from coterie.deploy.flower.monitoring import Figures, SiloFigures, SiloSeen
from coterie.deploy.home import LOOPBACK
from coterie.deploy.logs import Say
from coterie.errors import refused
from coterie.version import build

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float | None]  # None: not known
PATH = "/metrics"


def of_coordinator(found: Figures) -> str:
    """What a coordinator serves."""
    run = (("run", found.run), ("method", found.method), ("state", found.state))
    seen = [each.state for each in found.silos.values()]
    states: Samples = {(("state", state),): seen.count(state) for state in sorted({"online", "offline", *seen})}
    sent: Samples = {(("direction", "up"),): found.bytes_up, (("direction", "down"),): found.bytes_down}

    def of_silos(value: Callable[[SiloSeen], float | None]) -> Samples:
        return {(("silo", name),): value(each) for name, each in found.silos.items()}

    online, silent = of_silos(lambda each: each.state == "online"), of_silos(lambda each: each.silent)
    contact = of_silos(lambda each: each.contact)
    return "".join(
        [
            _metric("coterie_build_info", "the coterie that runs", {(("version", build()),): 1}),
            _metric("coterie_run_info", "the newest run", {run: 1} if found.run else {}),
            _metric("coterie_round", "the round that its current method is in", {(): found.round}),
            _metric("coterie_rounds", "the rounds that its current method has", {(): found.rounds}),
            _metric("coterie_bytes_total", "of models in this run", sent, "counter"),
            _metric("coterie_rejected_total", "uploads that did not count", {(): found.rejected}, "counter"),
            _metric("coterie_epsilon", "privacy that the run has spent, once it has ended", {(): found.epsilon}),
            _metric("coterie_silos", "silos by their state", states),
            _metric("coterie_silo_online", "whether a silo is connected", online),
            _metric("coterie_silo_silent", "whether a silo was asked over a minute ago and has not answered", silent),
            _metric("coterie_silo_last_contact_timestamp_seconds", "when a silo was last heard of", contact),
            *_machine(found.free, found.certificate),
        ]
    )


def of_silo(found: SiloFigures) -> str:
    """What a silo serves."""
    return "".join(
        [
            _metric("coterie_build_info", "the coterie that runs", {(("version", build()),): 1}),
            _metric("coterie_connected", "whether the coordinator has let this silo in", {(): found.connected}),
            _metric("coterie_last_request_timestamp_seconds", "when it last answered or refused", {(): found.contact}),
            _metric("coterie_answers_total", "answers about its data, over all runs", {(): found.answers}, "counter"),
            _metric("coterie_refused", "refusals in its events.log", {(): found.refused}),
            _metric("coterie_epsilon", "privacy that all uploads have spent", {(): found.epsilon}),
            *_machine(found.free, found.certificate),
        ]
    )


@contextmanager
def served(port: int | None, text: Callable[[], str], say: Say) -> Iterator[None]:
    """Serve a text on a port of loopback meanwhile; None: on none."""
    if port is None:
        yield
        return
    with refused(f"--metrics {port}", "give another port"):
        server = Server(port, text)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    say(f"figures for Prometheus at http://{LOOPBACK}:{server.server_port}{PATH}")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class Server(ThreadingHTTPServer):
    """Serves one text to this machine."""

    daemon_threads = True

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        super().__init__((LOOPBACK, port), MetricsHandler)
        self.text = text


class MetricsHandler(BaseHTTPRequestHandler):
    """That text and nothing else."""

    server: Server

    def do_GET(self) -> None:
        """Answer whoever asks from this machine; a page of another site that a name was bent to point here is not."""
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (LOOPBACK, "localhost")}:
            return self.send_error(403)
        if self.path != PATH:
            return self.send_error(404)
        content = self.server.text().encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        """Scrapes are not logged."""


def _machine(free: int, certificate: float | None) -> list[str]:
    return [
        _metric("coterie_disk_free_bytes", "of the disk that holds this party's folder", {(): free}),
        _metric("coterie_certificate_expiry_timestamp_seconds", "when its certificate expires", {(): certificate}),
    ]


def _metric(name: str, what: str, samples: Samples, kind: str = "gauge") -> str:
    """One metric with a line for each of its samples that is known; empty where none is."""
    known = {_written(labels): float(value) for labels, value in samples.items() if value is not None}
    lines = [f"{name}{labels} {'+Inf' if value == math.inf else repr(value)}" for labels, value in known.items()]
    return "\n".join([f"# HELP {name} {what}", f"# TYPE {name} {kind}", *lines, ""]) if lines else ""


def _written(labels: Labels) -> str:
    escaped = ((key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}" if labels else ""
