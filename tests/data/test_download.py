"""Downloads, from a server that drops, truncates, corrupts, refuses and stalls."""

import hashlib
import socket

import numpy as np
import pytest
from flaky_server import serving

from coterie.data import download as module
from coterie.data.download import Failed, download
from coterie.data.sources import File

CONTENT = np.random.default_rng(0).bytes(300_000)


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with serving(CONTENT) as running:
        yield running


@pytest.fixture
def get(server, tmp_path):
    """Download with this script; returns the waits between tries, and leaves the file in tmp_path."""

    def run(*script, urls=None, content=CONTENT, kind="md5"):
        server.script = list(script)
        file = File("file", urls or (server.url,), f"{kind}:{hashlib.new(kind, content).hexdigest()}")
        waits, seen = [], []
        download(file, tmp_path / "in" / "file", lambda have, total: seen.append((have, total)), waits.append)
        assert (tmp_path / "in" / "file").read_bytes() == CONTENT
        assert not (tmp_path / "in" / "file.part").exists()
        assert seen[-1][0] == len(CONTENT)
        return waits

    return run


@pytest.mark.parametrize("kind", ["md5", "sha256"])
def test_a_file_arrives_whole(get, server, kind):
    assert get(kind=kind) == []
    assert server.ranges == [None]


def test_a_dropped_connection_is_taken_up_where_it_broke(get, server):
    assert get("drop 100000", "drop 50000", "ok") == [1, 2]
    assert server.ranges == [None, "bytes=100000-", "bytes=150000-"]


def test_a_server_that_knows_no_ranges_sends_it_all_again(get, server):
    assert get("drop 100000", "no-range") == [1]
    assert server.ranges == [None, "bytes=100000-"]


def test_a_server_that_resumes_elsewhere_is_not_believed(get, server):
    assert get("drop 100000", "wrong-range", "ok") == [1, 2]
    assert server.ranges == [None, "bytes=100000-", None]


@pytest.mark.parametrize("spoilt", ["truncate 1000", "corrupt", "no-length 5000"])
def test_what_is_not_the_published_file_is_fetched_anew(get, server, spoilt):
    assert get(spoilt, "ok") == [1]
    assert server.ranges == [None, None]


def test_a_bad_beginning_is_found_when_the_rest_is_there(get, server):
    assert get("corrupt 100000", "ok", "ok") == [1, 2]
    assert server.ranges == [None, "bytes=100000-", None]


@pytest.mark.parametrize("code", ["500", "503", "429"])
def test_a_server_in_trouble_is_asked_again(get, code):
    assert get(code, code, "ok") == [1, 2]


def test_a_part_of_an_earlier_run_is_used(get, server, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.part").write_bytes(CONTENT[:200_000])
    assert get() == []
    assert server.ranges == ["bytes=200000-"]


def test_a_part_that_is_complete_is_only_checked(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    file = File("file", (server.url,), f"md5:{hashlib.md5(CONTENT).hexdigest()}")
    download(file, tmp_path / "file", lambda have, total: None, lambda wait: None)
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert server.ranges == [f"bytes={len(CONTENT)}-"]


def test_a_part_that_is_too_long_is_thrown_away(get, server, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "file.part").write_bytes(CONTENT + b"more")
    assert get() == [1]
    assert server.ranges == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_stalled_connection_is_given_up(get, server, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT", 0.3)
    assert get("stall 100000", "ok") == [1]
    assert server.ranges == [None, "bytes=100000-"]


def test_a_missing_file_is_looked_for_at_the_next_address_at_once(get, server):
    assert get("404", "ok", urls=(server.url, f"{server.url}2")) == []


def test_an_address_that_has_something_else_is_left_after_two_tries(get, server):
    assert get("corrupt", "corrupt", "ok", urls=(server.url, f"{server.url}2")) == [1]


def test_an_unknown_host_is_passed_over(get, server, monkeypatch):
    look_up = socket.getaddrinfo

    def unknown(host, *rest, **more):
        if host == "nowhere.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return look_up(host, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert get(urls=("http://nowhere.invalid/file", server.url)) == []


def test_trouble_without_end_is_said_and_leaves_nothing_in_place(get, tmp_path):
    with pytest.raises(Failed, match=r"127\.0\.0\.1:\d+/file: the server answered 503"):
        get(*["503"] * 99)
    with pytest.raises(Failed, match="checksum is not the published one"):
        get(*["corrupt"] * 99)
    with pytest.raises(Failed, match="the server answered 404"):
        get("404")
    with pytest.raises(Failed, match="checksum is not the published one"):
        get(content=b"something else was published")
    assert list((tmp_path / "in").iterdir()) == []


def test_tries_are_few_and_further_and_further_apart(server, tmp_path):
    server.script = ["503"] * 99
    waits = []
    with pytest.raises(Failed):
        download(File("file", (server.url,), "md5:0"), tmp_path / "file", lambda have, total: None, waits.append)
    assert waits == [1, 2, 4, 8] and len(server.ranges) == 5


def test_a_closed_port_is_no_network(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    file = File("file", (f"http://127.0.0.1:{port}/file",), "md5:0")
    with pytest.raises(Failed, match="Connection refused"):
        download(file, tmp_path / "file", lambda have, total: None, lambda wait: None)
