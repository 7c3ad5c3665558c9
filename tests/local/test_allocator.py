import ctypes
import platform
import subprocess
import sys

import pytest
import torch

from manyheads.config import Config
from manyheads.engines import forks, one_thread
from manyheads.events import RoundDone
from manyheads.experiment import Experiment
from manyheads.local.allocator import free_buffers, keep_memory, trim_memory


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's options")
def test_glibc_takes_every_option_as_often_as_it_is_told():
    assert keep_memory()
    assert keep_memory()


def test_a_run_keeps_memory(monkeypatch):
    told = []
    monkeypatch.setattr("manyheads.engines.base.keep_memory", lambda: told.append(True))
    with one_thread():
        assert told == [True]


FREED = """
import resource
import torch
from manyheads.events import RoundDone
from manyheads.experiment import Experiment
from manyheads.local.allocator import keep_memory, trim_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize() >> 20

keep_memory()
pieces = [torch.ones(1 << 20) for _ in range(100)]  # 4 MiB each
full = resident()
last = pieces.pop()  # above all others, so that the heap's end stays where it is
del pieces
kept = resident()
trim_memory()
print(full - kept, full - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's options")
def test_free_memory_is_kept_until_it_is_trimmed():
    said = subprocess.run([sys.executable, "-c", FREED], capture_output=True, text=True, check=True)
    before, after = map(int, said.stdout.split())
    assert before < 40
    assert after > 350


def test_memory_is_trimmed_after_each_round_before_anybody_hears_of_it(monkeypatch):
    order = []
    monkeypatch.setattr("manyheads.experiment.trim_memory", lambda: order.append("trimmed"))
    config = Config().with_values({"train.rounds": 2, "partition.clients": 4, "run.engine": "serial"})
    Experiment(config).run(on_event=lambda event: order.append("said") if isinstance(event, RoundDone) else None)
    assert order == ["trimmed", "said"] * 3  # with the test before training


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch, system):
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(ctypes, "CDLL", None)
    assert not keep_memory()
    trim_memory()


def test_other_c_libraries_are_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not keep_memory()
    trim_memory()


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
import ctypes, importlib, pathlib, sys
for name in sys.argv[1:]: importlib.import_module(name)
import torch
print(ctypes.CDLL(str(pathlib.Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")).mkl_serv_get_fast_mm_status())
"""


@pytest.mark.skipif(not (sys.platform == "linux" and torch.backends.mkl.is_available()), reason="MKL's function")
@pytest.mark.parametrize(("first", "off"), [(["torch"], "0"), (["torch", "manyheads"], "0"), (["manyheads"], "1")])
def test_mkl_is_kept_from_buffers_where_manyheads_came_first(monkeypatch, first, off):
    monkeypatch.delenv("MKL_DISABLE_FAST_MM", raising=False)
    said = subprocess.run([sys.executable, "-c", STATUS, *first], capture_output=True, text=True, check=True)
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
