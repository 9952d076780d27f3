"""The figures of a party in Prometheus' text format, served to this machine alone."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from coterie.deploy.flower.figures import Figures, SiloFigures
from coterie.deploy.home import LOOPBACK
from coterie.deploy.logs import Say
from coterie.errors import BadInput
from coterie.version import build

Labels = tuple[tuple[str, str], ...]
Samples = Mapping[Labels, float | None]  # None: not known
PATH = "/metrics"


def of_coordinator(found: Figures) -> str:
    """What a coordinator serves."""
    run = (("run", found.run), ("method", found.method), ("state", found.state))
    states = sorted({"online", "offline", *(each.state for each in found.silos.values())})
    silos = {name: (("silo", name),) for name in found.silos}
    return "".join(
        [
            _metric("coterie_build_info", "the coterie that runs", {(("version", build()),): 1}),
            _metric("coterie_run_info", "the newest run", {run: 1} if found.run else {}),
            _metric("coterie_round", "the round that its current method is in", {(): found.round}),
            _metric("coterie_rounds", "the rounds that its current method has", {(): found.rounds}),
            _metric("coterie_bytes_total", "of models in this run", _directions(found), "counter"),
            _metric("coterie_rejected_total", "uploads that did not count", {(): found.rejected}, "counter"),
            _metric("coterie_epsilon", "privacy that the run has spent, once it has ended", {(): found.epsilon}),
            _metric(
                "coterie_silos",
                "silos by their state",
                {(("state", s),): sum(each.state == s for each in found.silos.values()) for s in states},
            ),
            _metric(
                "coterie_silo_online",
                "whether a silo is connected",
                {silos[name]: each.state == "online" for name, each in found.silos.items()},
            ),
            _metric(
                "coterie_silo_silent",
                "whether a silo was asked over a minute ago and has not answered",
                {silos[name]: each.silent for name, each in found.silos.items()},
            ),
            _metric(
                "coterie_silo_last_contact_timestamp_seconds",
                "when a silo was last heard of",
                {silos[name]: each.contact for name, each in found.silos.items()},
            ),
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
    try:
        server = Server(port, text)
    except OSError as error:
        raise BadInput(f"--metrics {port}: {error.strerror or error}; give another port") from None
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
        super().__init__((LOOPBACK, port), Handler)
        self.text = text


class Handler(BaseHTTPRequestHandler):
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


def _directions(found: Figures) -> Samples:
    return {(("direction", "up"),): found.bytes_up, (("direction", "down"),): found.bytes_down}


def _machine(free: int, certificate: float | None) -> list[str]:
    return [
        _metric("coterie_disk_free_bytes", "of the disk that holds this party's folder", {(): free}),
        _metric("coterie_certificate_expiry_timestamp_seconds", "when its certificate expires", {(): certificate}),
    ]


def _metric(name: str, what: str, samples: Samples, kind: str = "gauge") -> str:
    """One metric with a line for each of its samples that is known; empty where none is."""
    lines = [
        f"{name}{_written(labels)} {_number(float(value))}" for labels, value in samples.items() if value is not None
    ]
    return "\n".join([f"# HELP {name} {what}", f"# TYPE {name} {kind}", *lines, ""]) if lines else ""


def _written(labels: Labels) -> str:
    escaped = ((key, value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for key, value in labels)
    return "{" + ",".join(f'{key}="{value}"' for key, value in escaped) + "}" if labels else ""


def _number(value: float) -> str:
    return "+Inf" if value == math.inf else repr(value)
