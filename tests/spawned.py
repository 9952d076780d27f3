"""Several processes of one test: each runs the same function, and what goes wrong in one fails the test."""

import os
import socket
import subprocess
import sys
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def over_processes(count: int, code: str, *words: object) -> list[str]:
    """What each of so many processes prints that run this code, after they have met."""
    begin = f"import sys\nsys.path.insert(0, {str(Path(__file__).parent)!r})\n"
    begin += "from coterie.engine.ranks import join\njoin()\n"
    port = str(free_port())
    started = [
        subprocess.Popen(
            [sys.executable, "-c", begin + code, *map(str, words)],
            env=os.environ
            | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
            | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
    assert all(process.returncode == 0 for process in started), "\n".join(err[-2000:] for _, err in ended)
    return [out for out, _ in ended]
