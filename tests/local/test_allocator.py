import ctypes
import platform
import sys

import pytest

from manyheads.engines import one_thread
from manyheads.local.allocator import keep_memory


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
