"""The figures in Prometheus' text format, on loopback alone."""

import re
from http.client import HTTPConnection
from math import inf
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

pytest.importorskip("cryptography")
from coterie.deploy.flower.figures import Figures, SiloFigures, SiloSeen
from coterie.deploy.flower.metrics import of_coordinator, of_silo, served
from coterie.deploy.home import free_port
from coterie.errors import BadInput

SEEN = {
    "north": SiloSeen("online", 1.8e9),
    "south": SiloSeen("offline", 1.7e9, silent=True),
    "east": SiloSeen("unknown"),
}
RUN = {"run": 'a"b\\c', "state": "training", "method": "fedamp", "round": 3, "rounds": 20}
FED = Figures(SEEN, 5000, 1.9e9, **RUN, bytes_up=300, bytes_down=500, rejected=2)
LINE = re.compile(r'[a-z_]+(\{[a-z]+="(\\.|[^"\\])*"(,[a-z]+="(\\.|[^"\\])*")*\})? (\+Inf|-?[0-9.e+-]+)')


def test_every_line_is_one_that_prometheus_reads() -> None:
    silo = SiloFigures("north", True, 1.8e9, 7, 1, inf, 5000, 1.9e9)
    for text in (of_coordinator(FED), of_silo(silo), of_coordinator(Figures({}, 1))):
        assert text.endswith("\n")
        for line in text.splitlines():
            assert re.fullmatch(r"# (HELP|TYPE) [a-z_]+ .+", line) or LINE.fullmatch(line), line


def test_a_coordinator_shows_round_silos_bytes_rejections_disk_and_certificate() -> None:
    lines = of_coordinator(FED).splitlines()
    for line in (
        "coterie_round 3.0",
        "coterie_rounds 20.0",
        'coterie_silos{state="online"} 1.0',
        'coterie_silo_online{silo="south"} 0.0',
        'coterie_silo_silent{silo="south"} 1.0',
        'coterie_silo_last_contact_timestamp_seconds{silo="north"} 1800000000.0',
        'coterie_bytes_total{direction="up"} 300.0',
        "coterie_rejected_total 2.0",
        "coterie_disk_free_bytes 5000.0",
        "coterie_certificate_expiry_timestamp_seconds 1900000000.0",
        r'coterie_run_info{run="a\"b\\c",method="fedamp",state="training"} 1.0',
    ):
        assert line in lines
    assert not [line for line in lines if "epsilon" in line or 'contact_timestamp_seconds{silo="east"}' in line]


def test_a_silo_that_uploads_without_noise_has_spent_without_bound() -> None:
    assert "coterie_epsilon +Inf" in of_silo(SiloFigures("north", False, None, 1, 0, inf, 1, None)).splitlines()


def test_it_is_served_on_loopback_to_who_asks_for_loopback() -> None:
    port, said = free_port(), list[str]()
    with served(port, lambda: "coterie_round 1.0\n", said.append):
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.read() == b"coterie_round 1.0\n"
        for path, host in (("/", "127.0.0.1"), ("/metrics", "evil.example.org")):
            with pytest.raises(HTTPError, match=r"40[34]"):
                urlopen(Request(f"http://127.0.0.1:{port}{path}", headers={"Host": f"{host}:{port}"}))
        with pytest.raises(BadInput, match=f"--metrics {port}: .*; give another port"), served(port, str, said.append):
            pass
    assert said == [f"figures for Prometheus at http://127.0.0.1:{port}/metrics"]
    with pytest.raises(OSError):
        HTTPConnection("127.0.0.1", port, timeout=1).connect()
