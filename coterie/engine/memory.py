"""Memory that a step frees is kept for the next one, as on a GPU; by itself the C library gives large blocks back."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT = 1 << 30  # bytes


def keep_freed() -> None:
    """Ask the C library to keep what was freed; elsewhere than on glibc nothing happens, and results never change."""
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)
