"""The engine on a Ray cluster that is started on this machine."""

import os
import sys
import threading
import types
from pathlib import Path

import methods
import pytest
import toys

import manyheads
from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.errors import InputError
from manyheads.events import Warned

ray = pytest.importorskip("ray")


@pytest.fixture(scope="module", autouse=True)
def _cluster():
    paths = [str(Path(manyheads.__file__).parents[1]), str(Path(methods.__file__).parent)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(paths))
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()


def test_it_gives_the_bits_of_serial(overheard):
    found = toys.run(PFedKDH(), run__engine="ray", run__workers=2)
    uploads = dict(overheard)
    overheard.clear()
    serial = toys.run(PFedKDH())
    assert found.server == serial.server
    assert found.private == serial.private
    assert uploads == overheard
    assert toys.plain(found.rows) == toys.plain(serial.rows)


def test_a_client_whose_worker_is_lost_is_tried_again(tmp_path):
    lines = []
    found = toys.experiment(methods.Once(str(tmp_path / "done")), run__engine="ray", run__workers=2).run(
        on_event=lambda event: lines.append(event.message) if isinstance(event, Warned) else None
    )
    assert found.server == toys.run(FedPer()).server
    [line] = lines
    assert line.startswith("client 3: a worker was lost (")
    assert line.endswith("; another worker tries again")


def test_a_mistake_in_a_method_comes_with_its_traceback():
    with pytest.raises(RuntimeError, match=r"^client \d: KeyError: 'absent'"):
        toys.run(methods.Wrong(), run__engine="ray", run__workers=1)


def test_what_workers_cannot_load_is_said_in_a_line():
    class Elsewhere(FedPer):
        """Known by a module that workers lack."""

    Elsewhere.__module__ = Elsewhere.__qualname__ = "nowhere"
    sys.modules["nowhere"] = types.ModuleType("nowhere")
    sys.modules["nowhere"].nowhere = Elsewhere
    try:
        with pytest.raises(
            InputError, match=r"^run.engine = 'ray': its workers cannot start: .*No module named 'nowhere'"
        ):
            toys.run(Elsewhere(), run__engine="ray", run__workers=1)
    finally:
        del sys.modules["nowhere"]


def test_what_cannot_be_sent_is_said_in_a_line():
    class Holds(FedPer):
        lock = threading.Lock()

    line = "run.engine = 'ray': the method or network cannot be sent to workers: cannot pickle '_thread.lock' object"
    with pytest.raises(InputError, match=f"^{line}$"):
        toys.run(Holds(), run__engine="ray", run__workers=1)


def test_more_workers_than_processors_would_wait_for_ever():
    with pytest.raises(InputError, match=r"^run\.workers = 3: the Ray cluster has 2 processors$"):
        toys.run(FedPer(), run__engine="ray", run__workers=3)
