import threading

import pytest

from manyheads.engines.errand import Asked, Done, Errand, Failed
from manyheads.local.steps import StoppedError


def test_a_function_waits_for_its_answers():
    heard = []

    def fn():
        heard.append(errand.ask("first"))
        try:
            errand.ask("second")
        except KeyError as error:
            heard.append(error.args)
        return "end"

    errand = Errand(fn)
    assert errand.resume() == Asked("first")
    assert heard == []
    assert errand.resume(1) == Asked("second")
    assert heard == [1]
    assert errand.resume(KeyError("no")) == Done("end")
    assert heard == [1, ("no",)]


def test_what_it_raises_comes_out():
    error = KeyError("no")

    def fn():
        raise error

    assert Errand(fn).resume() == Failed(error)


@pytest.mark.parametrize("begun", [False, True])
def test_it_can_be_ended(begun):
    ended = []

    def fn():
        for _ in range(2):
            try:
                errand.ask("on?")
            except StoppedError:
                ended.append(1)
        errand.ask("still?")

    errand = Errand(fn)
    if begun:
        errand.resume()
    errand.end()
    errand.end()
    assert ended == [1, 1] * begun
    assert "client" not in {thread.name for thread in threading.enumerate() if thread.is_alive()} or not begun
