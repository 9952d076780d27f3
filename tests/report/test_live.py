"""The server of `coterie watch`: this machine only, three addresses, nothing else."""

import http.client
import json
import shutil
import threading
from contextlib import contextmanager

import pytest
from command import call, small

from coterie.errors import BadInput
from coterie.report.live import Live
from coterie.run import experiment
from coterie.runs.read import read_run


@contextmanager
def served(folder):
    with Live(folder) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def get(server, path, host=None):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=10)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped after its first method."""
    folder = tmp_path_factory.mktemp("stopped")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(experiment, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call("run", small(folder), "--out", folder / "out", "--quiet") == 130
    last = sorted((folder / "out" / ".checkpoints").iterdir())[1]
    shutil.rmtree(last)
    return folder / "out"


def test_a_finished_run_is_shown_with_its_verdict(run_folder):
    with served(run_folder) as server:
        status, page = get(server, "/")
        assert status == 200 and "&lt;img src=x" in page and "<img src=x" not in page
        state = json.loads(get(server, "/state")[1])
        assert state["status"].startswith("Finished. ") and "fedamp" in state["scores"]
        assert len(state["figures"]["curves"]["data"]) >= 3
        assert json.loads(get(server, f"/state?known={state['version']}")[1]) == {"version": state["version"]}


def test_a_run_that_goes_on_is_shown_as_far_as_it_is(stopped):
    with served(stopped) as server:
        state = json.loads(get(server, "/state")[1])
        assert "2 / 2" in state["progress"] and "0 / 2" in state["progress"]
        assert "separate" in state["scores"] and "fedamp" not in state["scores"]
        status, report = get(server, "/report")
        assert status == 200 and "This run has not finished" in report and "<h2>Verdict</h2>" not in report


def test_an_unfinished_run_has_no_weighted_score(stopped):
    run = read_run(stopped)
    assert not run.finished and list(run.methods) == ["separate"]
    assert "weighted" not in run.methods["separate"] and run.methods["separate"]["bmta"] > 0


def test_it_listens_to_this_machine_only_and_serves_nothing_else(run_folder):
    with served(run_folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        assert get(server, "/", host="evil.example")[0] == 403  # another site's name, bent to point here
        assert get(server, "/", host=f"localhost:{server.server_port}")[0] == 200
        for path in ("/summary.json", "/../summary.json", "/report/../../study.toml", "/%2e%2e/summary.json"):
            assert get(server, path)[0] == 404


def test_a_folder_without_a_run_is_told_before_a_browser_opens(tmp_path):
    with pytest.raises(BadInput, match=r"no summary\.json in it"):
        Live(tmp_path)


@pytest.mark.parametrize(("error", "told"), [(ConnectionResetError, False), (ZeroDivisionError, True)])
def test_a_browser_that_leaves_before_its_answer_came_is_not_told(run_folder, capsys, error, told):
    with Live(run_folder) as server:
        try:
            raise error
        except error:
            server.handle_error(None, ("127.0.0.1", 1))
    assert bool(capsys.readouterr().err) is told


@pytest.mark.slow
def test_the_page_moves_with_the_run_and_says_when_it_has_ended(stopped, tmp_path, browser):
    folder = tmp_path / "run"
    shutil.copytree(stopped, folder)
    names = "() => (document.getElementById('curves').data || []).map(line => line.name)"
    with served(folder) as server, browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(120_000)  # the machine may be busy
        page.goto(server.address)
        page.wait_for_function(f"() => ({names})().includes('separate')")
        assert "fedamp" not in page.evaluate(names) and "Running" in page.inner_text("#status")
        assert call("run", "--resume", folder, "--quiet") == 0
        page.wait_for_function(f"() => ({names})().includes('fedamp')")
        # The page may have asked between the last round and the run's end: then its next question finds the end.
        page.wait_for_function("() => document.getElementById('status').textContent.startsWith('Finished.')")
        assert page.locator("#progress progress").last.get_attribute("value") == "2"
