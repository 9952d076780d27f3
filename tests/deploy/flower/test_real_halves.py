"""The example of a Flower app with a method's halves, in Flower's own processes: no coordinator, no `coterie silo`."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from real import really, when

pytest.importorskip("flwr")
from coterie.deploy.flower.commands import environment
from coterie.deploy.flower.programs import Program, running
from coterie.deploy.home import free_port

pytestmark = really
APP = Path(__file__).parents[3] / "examples" / "flower"


def test_the_example_runs_between_real_processes(tmp_path: Path) -> None:
    port, env = free_port(), environment(tmp_path / "home", OMP_NUM_THREADS="1")
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    link = ["flower-superlink", "--insecure", "--host", "127.0.0.1", "--port", str(port)]
    programs = [Program("link", [*link, "--disable-runtime-dependency-installation"], env, tmp_path / "link.log")]
    for i in range(2):
        node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(free_port())]
        node += ["--node-config", f"partition-id={i}"]
        programs.append(Program(f"node-{i}", node, env, tmp_path / f"node-{i}.log"))
    with running(programs):
        programs[0].start()
        when(lambda: "startup complete" in programs[0].logged(), 60)
        for program in programs[1:]:
            program.start()
        when(lambda: programs[0].logged().count("Activated node_id") == 2, 60)
        flwr = str(Path(sys.executable).parent / "flwr")
        words = [flwr, "run", str(APP), "here", "--stream", "--run-config", "rounds=2"]
        done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=600)
        shown = done.stdout + done.stderr
        assert re.search(r"2 \{'silo-0': '[\d.]+%', 'silo-1': '[\d.]+%'\}", shown), shown + programs[0].logged()
