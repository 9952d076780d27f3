"""A run that hears nothing, because it is deep in a call, is ended all the same."""

import os
import signal
import subprocess
import sys

import pytest

# A call that takes minutes, during which Python runs no handler.
DEEP = """
import hashlib, os, threading
from coterie.run.stopping import promptly
with promptly("stopped; go on"):
    threading.Timer(0.5, lambda: os.write(1, b"deep")).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)
"""
QUICK = """
import os, signal
from coterie.run.stopping import promptly
signal.signal(signal.SIGTERM, signal.default_int_handler)
with promptly("never said"):
    pass
try:
    with promptly("never said"):
        os.kill(os.getpid(), signal.SIGTERM)
except KeyboardInterrupt:
    print("heard", end="")
"""


def child(script):
    return subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
    )


@pytest.mark.parametrize("times", [1, 2])
def test_a_call_that_takes_long_does_not_keep_a_run_from_ending(times):
    with child(DEEP) as deep:
        try:
            assert deep.stdout.read(4) == b"deep"
            for _ in range(times):
                deep.send_signal(signal.SIGINT)
            deep.wait(timeout=60)
        finally:
            deep.kill()
        assert (deep.returncode, deep.stderr.read()) == (130, b"coterie: stopped; go on\n")


def test_work_that_ends_by_itself_is_left_to():
    with child(QUICK) as quick:
        out, err = quick.communicate(timeout=60)
    assert (quick.returncode, out, err) == (0, b"heard", b"")
