import ctypes
import platform
import subprocess
import sys

import pytest
import torch

from manyheads.engines import forks, one_thread
from manyheads.local.allocator import free_buffers, keep_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's options")
def test_glibc_takes_every_option_as_often_as_it_is_told():
    assert keep_memory()
    assert keep_memory()


def test_a_run_keeps_memory(monkeypatch):
    told = []
    monkeypatch.setattr("manyheads.engines.base.keep_memory", lambda: told.append(True))
    with one_thread():
        assert told == [True]


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not keep_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_memory()


@pytest.mark.skipif(not (sys.platform == "linux" and torch.backends.mkl.is_available()), reason="MKL's function")
def test_mkl_is_told_to_free_its_buffers(monkeypatch):
    called, real = [], ctypes.CDLL

    class Library:
        def __init__(self, path):
            self._real = real(path)

        def __getattr__(self, name):
            found = getattr(self._real, name)  # where it is missing, nothing would be done, without a word
            return lambda: called.append(name) or found()

    monkeypatch.setattr(ctypes, "CDLL", Library)
    free_buffers()
    assert called == ["mkl_serv_free_buffers"]


STATUS = """
import ctypes, pathlib, sys
if "manyheads" in sys.argv: import manyheads
import torch
print(ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_serv_get_fast_mm_status())
"""


@pytest.mark.skipif(not (sys.platform == "linux" and torch.backends.mkl.is_available()), reason="MKL's function")
@pytest.mark.parametrize(("imported", "off"), [("torch", "0"), ("manyheads", "1")])
def test_mkl_is_kept_from_buffers_where_manyheads_came_first(monkeypatch, imported, off):
    monkeypatch.delenv("MKL_DISABLE_FAST_MM", raising=False)
    said = subprocess.run([sys.executable, "-c", STATUS, imported], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == off


def test_a_torch_without_mkl_has_none(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda path: object())
    free_buffers()
    monkeypatch.undo()
    monkeypatch.setattr(torch, "__file__", "/nowhere/torch/__init__.py")
    free_buffers()


@pytest.mark.skipif(not hasattr(forks.os, "fork"), reason="forks")
def test_buffers_are_freed_before_every_fork(monkeypatch):
    order, real = [], forks.os.fork
    monkeypatch.setattr(forks, "free_buffers", lambda: order.append("freed"))
    monkeypatch.setattr(forks.os, "fork", lambda: order.append("forked") or real())
    for _ in range(2):
        forks.fork(lambda pipe: None).end()
    assert order == ["freed", "forked"] * 2
