"""The C library's memory: told to keep what a step of training gives back, since the next step asks for it again."""

import ctypes
import sys

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_OPTIONS = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 256 << 20}  # the first: all it takes


def keep_memory() -> bool:
    """Lets glibc keep freed memory for this process; says whether it does. With other C libraries nothing happens.

    By default the large tensors of every step are new pages from the system, each of which costs a fault.
    """
    if sys.platform != "linux":
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    return all([library.mallopt(option, value) == 1 for option, value in _OPTIONS.items()])
