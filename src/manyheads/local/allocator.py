"""Memory below torch's: what a step of training gives back is kept for the next one, and let go after a round.

MKL's own is let go before a fork.
"""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path

import torch

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_OPTIONS = {M_MMAP_THRESHOLD: 32 << 20, M_TRIM_THRESHOLD: 2**31 - 1, M_TOP_PAD: 256 << 20}  # the first: all it takes


def keep_memory() -> bool:
    """Lets glibc keep freed memory for this process; says whether it does. With other C libraries nothing happens.

    By default the large tensors of every step are new pages from the system, each of which costs a fault.
    """
    library = _glibc()
    return library is not None and all([library.mallopt(option, value) == 1 for option, value in _OPTIONS.items()])


def trim_memory() -> None:
    """Has glibc give what is free back to the system; call it now and then, while nothing computes.

    Where each piece of memory comes to lie depends on which thread asks first. So more and more of what glibc keeps is
    touched over the rounds, though no more is in use. With other C libraries nothing happens.
    """
    if (library := _glibc()) is not None:
        library.malloc_trim(ctypes.c_size_t(0))


def free_buffers() -> None:
    """Has MKL give back the buffers of matrix products; call it before a fork, while no other thread computes.

    It keeps some where torch was imported before manyheads, and lists them by thread. In a fork of a process whose
    threads have computed and ended, the next product may walk around such a list for ever. A torch without MKL has
    none. (The lock of a thread that computes at that moment stays locked in the fork; nothing helps against that.)
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_serv_free_buffers()


def _glibc() -> ctypes.CDLL | None:
    if sys.platform != "linux":
        return None
    library = ctypes.CDLL(None)
    return library if hasattr(library, "gnu_get_libc_version") else None
