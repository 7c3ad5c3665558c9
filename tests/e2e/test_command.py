"""What the installed command does, as a process of its own."""

import re

import pytest


def sets(*values: str) -> list[str]:
    return [word for value in values for word in ("--set", value)]


@pytest.mark.parametrize(
    "args",
    [["--help"], *(["list", what] for what in ("methods", "data", "partitions", "models"))],
    ids=" ".join,
)
def test_what_imports_no_torch(process, args):
    done = process(*args, interpreter=("-X", "importtime"))
    assert done.status == 0, done.err
    imported = {line.split("|")[-1].strip() for line in done.err.splitlines()}
    assert "manyheads.cli" in imported
    assert not {"torch", "numpy", "sklearn", "matplotlib"} & imported
    assert done.out.strip()


# At this rate the proximal term multiplies itself; without recalibration it is a client that meets it first.
DIVERGING = sets("train.lr=1e6", "train.epochs=5", "algorithm.recalibration_epochs=0", "train.rounds=2")


def test_a_loss_that_is_not_finite_stops_the_run(command, config_text, tmp_path):
    (tmp_path / "small.toml").write_text(config_text)
    # with other engines it is a matter of who is first
    done = command("run", "small.toml", "--folder", "run", *DIVERGING, *sets("run.engine=serial"))
    assert done.status == 1
    assert re.fullmatch(
        r"round \d, client \d: loss term '(ce|kd|prox)' is (nan|inf) in epoch \d, step \d+; "
        r"a smaller train.lr \(now 1e\+06\) or train.clip may help",
        done.error,
    )
    # What was stored before is still there, and the run says the same when it is resumed.
    again = command("resume", "run")
    assert (again.status, again.error) == (1, done.error)


def test_the_server_s_loss_that_is_not_finite_stops_the_run(command, config_text, tmp_path):
    (tmp_path / "small.toml").write_text(config_text)
    done = command("run", "small.toml", *sets("train.lr=1e6", "algorithm.warmup_epochs=3"))
    assert done.status == 1
    assert re.fullmatch(r"round -?\d, the server: loss term 'ce' is (nan|inf) in epoch \d, step \d+; .*", done.error)


def test_a_client_whose_loss_is_not_finite_may_be_dropped(command, config_text, tmp_path):
    (tmp_path / "small.toml").write_text(config_text)
    done = command("run", "small.toml", "--folder", "run", *DIVERGING, *sets("run.non_finite=drop"))
    assert done.status == 0, done.err
    assert re.search(r"warning: client \d is left out of the round: round \d, client \d: loss term", done.err)


def test_run_show_and_compare(command, config_text, tmp_path):
    (tmp_path / "small.toml").write_text(config_text)
    ran = command("run", "small.toml", *sets("train.rounds=1"))
    assert ran.status == 0, ran.err
    assert ran.err.splitlines()[-1] == "pfedkdh: finished, stored in runs/small-pfedkdh-0"
    shown = command("show", "runs/small-pfedkdh-0")
    assert shown.status == 0
    assert ran.out.startswith(shown.out)
    for name in ("curves.png", "partition.png"):
        assert f"wrote runs/small-pfedkdh-0/{name}" in ran.out
        assert (tmp_path / "runs/small-pfedkdh-0" / name).stat().st_size > 1000

    both = command("compare", "small.toml", "--methods", "fedavg,fedper", "--seeds", "0,1", *sets("train.rounds=1"))
    assert both.status == 0, both.err
    folder = tmp_path / "runs" / "small-compare"
    runs = {"fedavg-seed0", "fedper-seed0", "fedavg-seed1", "fedper-seed1"}
    assert runs <= {path.name for path in folder.iterdir()}
    partitions = {name: (folder / name / "partition.safetensors").read_bytes() for name in runs}
    assert partitions["fedavg-seed0"] == partitions["fedper-seed0"] != partitions["fedper-seed1"]
