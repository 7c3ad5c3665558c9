"""What a run must not pile up: in its checkpoints, in its result, in the process after it has ended."""

import gc
import json
import weakref

import pytest
import toys

from manyheads.algorithms.fedper import FedPer
from manyheads.algorithms.pfedkdh import PFedKDH


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
