"""What a run must not pile up: in its checkpoints, in its result, in the process after it has ended."""

import gc
import io
import json
import os
import shutil
import sys
import tempfile
import weakref

import pytest
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH
from manyheads.errors import InputError


@pytest.mark.parametrize("engine", ["serial", "threads", "processes"])
def test_nothing_of_a_run_is_left_in_the_process(engine):
    """Without the collector of reference circles, which comes late where objects are few and large."""
    gc.collect()
    gc.disable()
    try:
        experiment = toys.experiment(PFedKDH(), run__engine=engine, run__workers=2)
        setting = experiment.setting(experiment.algorithm.stages(3)[0])
        result = experiment.run()
        left = [weakref.ref(o) for o in (experiment, experiment.federation, setting, setting.network, result)]
        del experiment, setting, result
        assert [ref() for ref in left] == [None] * 5
    finally:
        gc.enable()


def test_a_checkpoint_names_the_clients_of_its_round_only(tmp_path):
    toys.run(FedPer(), tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "clients" / "index.jsonl").read_text().splitlines()]
    assert [line["position"] for line in lines] == [1, 2, 3]
    for line, cohort in zip(lines, toys.COHORTS, strict=True):
        assert [int(client) for client in line["clients"]] == list(cohort)
        assert [int(client) for client in line["facts"]] == list(cohort)
    manifest = json.loads((tmp_path / "run" / "checkpoints" / "3.json").read_text())
    assert manifest["extra"] == {"era": 0}


def test_rows_and_heads_of_a_stored_run_are_read_when_they_are_used(tmp_path, monkeypatch):
    kept = toys.run(FedPer(), tmp_path / "run")
    reads = []
    read = kept.rows._read
    monkeypatch.setattr(kept.rows, "_read", lambda: reads.append(1) or read())
    assert reads == []
    plain = toys.run(FedPer())
    assert toys.plain(kept.rows) == toys.plain(plain.rows)
    assert kept.rows[-1]["round"] == 2
    assert kept.rows == list(kept.rows)
    assert kept.rows != []
    assert reads == [1]
    assert kept.private == plain.private
    assert kept.private[0] is not kept.private[0]


def test_rows_of_a_run_whose_folder_is_gone_are_not_taken_for_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    here, gone = toys.run(FedPer(), "here"), toys.run(FedPer(), "gone")
    monkeypatch.chdir("/")
    assert len(here.rows) == 4
    shutil.rmtree(tmp_path / "gone")
    with pytest.raises(InputError, match=r"^gone is gone: the rows of this run can no longer be read$"):
        gone.accuracy()


def test_a_benchmark_that_is_stopped_leaves_no_folder(tmp_path, monkeypatch, capsys):
    common = pytest.importorskip("benchmarks.common", reason="only a checkout has the benchmarks")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))  # one round is asked for
    values = {"train.rounds": 9, "model.name": "mlp", "model.hidden": [2], "run.engine": "serial"}
    about = {
        "config": values | {"algorithm.name": "fedper", "data.auxiliary": 0, "partition.min_train": 1},
        "profile": "",
        "like": "mnist",
    }
    with pytest.raises(SystemExit):
        common.main({**about, "share": 0.01, "data_dir": None, "each": None})
    assert len(capsys.readouterr().out.splitlines()) == 2  # the test before training, and the round
    assert list(tmp_path.iterdir()) == []


def test_a_benchmark_s_process_may_tidy_up(tmp_path):
    common = pytest.importorskip("benchmarks.common", reason="only a checkout has the benchmarks")
    text = "import sys\nfor _ in sys.stdin: print('{\"x\": 1}', flush=True)\nopen(sys.argv[1], 'w').close()\n"
    (tmp_path / "program.py").write_text(text)
    with common.Program("program", str(tmp_path / "tidy"), env={**os.environ, "PYTHONPATH": str(tmp_path)}) as program:
        assert [program.ask(), program.ask()] == [{"x": 1}] * 2
        assert not (tmp_path / "tidy").exists()
    assert (tmp_path / "tidy").exists()


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_benchmark_of_speed_trains(precision):
    speed = pytest.importorskip("benchmarks.speed", reason="only a checkout has the benchmarks")
    speed._ours("mnist", 600, precision)()
