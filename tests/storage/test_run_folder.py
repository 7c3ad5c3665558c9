import errno
from pathlib import Path

import pytest
import torch

from manyheads.contract.records import PrivateState
from manyheads.contract.tree import Tree
from manyheads.errors import InputError, RunError
from manyheads.storage.run_folder import RunFolder


def one_line(caught: pytest.ExceptionInfo[Exception]) -> str:
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_run_comes_back_as_it_was(toy, tmp_path):
    for last in (0, 1, 5, 13):
        state, warnings = toy.restored(toy.finished(tmp_path / str(last), last))
        assert state == toy.expected(last)
        assert warnings == []


def test_the_last_two_checkpoints_are_kept_and_nothing_else(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 11)
    assert {file.name for file in (path / "checkpoints").iterdir()} == {
        "10.json",
        "10.safetensors",
        "11.json",
        "11.safetensors",
    }
    needed = set()
    for position in (10, 11):
        for client in range(toy.clients):
            taken = [p for p in range(1, position + 1) if client in toy.cohort(p)]
            needed |= {(str(client), f"{taken[-1]}.safetensors")} if taken else set()
    assert {(file.parent.name, file.name) for file in (path / "clients").glob("*/*")} == needed


def test_what_create_was_given_can_be_read(toy, tmp_path):
    config = '# über\n[data]\nsource = "digits"\n'

    def save(path):
        path.write_bytes(b"written by a function")

    with RunFolder.create(tmp_path / "a" / "b", config, partition=save, data={"counts": [[3, 4]]}) as folder:
        assert folder.config == config
        assert folder.partition_path.read_bytes() == b"written by a function"
        assert folder.data == {"counts": [[3, 4]]}
        assert folder.rows() == []
    with RunFolder.open(tmp_path / "a" / "b") as folder:
        assert folder.restore() is None


def test_rows_that_no_commit_followed_are_cut_back(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 2)
    with RunFolder.open(path) as folder:
        folder.restore()
        folder.append({"round": 3})
        assert folder.rows()[-1] == {"round": 3}
    with (path / "rounds.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "accu')
    with RunFolder.open(path, write=False) as folder:
        assert folder.rows()[-1] == {"round": 3}
    toy.finish(path, 6)


def test_a_damaged_line_is_named(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 2)
    (path / "rounds.jsonl").write_bytes(b'{"round": 0}\n{"rou\n{"round": 2}\n')
    with (
        RunFolder.open(path, write=False) as folder,
        pytest.raises(InputError, match=r"rounds\.jsonl, line 2: not JSON"),
    ):
        folder.rows()


def test_an_existing_run_is_refused(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 1)
    before = toy.files(path)
    with pytest.raises(InputError) as caught:
        toy.create(path)
    assert one_line(caught) == f"{path} already holds this run; continue it with: manyheads resume {path}"
    with pytest.raises(InputError) as caught:
        toy.create(path, "# a comment\n" + toy.config)
    assert "already holds this run" in one_line(caught)
    assert toy.files(path) == before


@pytest.mark.parametrize(
    ("old", "new", "difference"),
    [
        ("lr = 0.1", "lr = 0.015", "train.lr: 0.015 here, 0.1 there"),
        ("lr = 0.1\n", "", "train.lr: unset here, 0.1 there"),
        ("lr = 0.1", "lr = 0.1\nclip = 2.0", "train.clip: 2.0 here, unset there"),
        (
            'rounds = 5\nlr = 0.1\n[algorithm]\nname = "fedper"',
            'rounds = 6\nlr = 0.2\n[algorithm]\nname = "fedrep"',
            "train.rounds: 6 here, 5 there and 2 more",
        ),
    ],
)
def test_another_experiment_is_refused_with_the_difference(toy, tmp_path, old, new, difference):
    path = toy.finished(tmp_path / "run", 1)
    before = toy.files(path)
    assert old in toy.config
    with pytest.raises(InputError) as caught:
        toy.create(path, toy.config.replace(old, new))
    assert one_line(caught) == (
        f"{path} already holds another experiment (differs in {difference}); choose another --folder"
    )
    assert toy.files(path) == before


@pytest.mark.parametrize("content", [b"rounds = = 5", b"\xff\xfe"])
def test_a_config_that_cannot_be_compared_is_refused(toy, tmp_path, content):
    path = toy.finished(tmp_path / "run", 1)
    (path / "config.toml").write_bytes(content)
    with pytest.raises(InputError, match=r"config\.toml"):
        toy.create(path)
    assert (path / "config.toml").read_bytes() == content


@pytest.mark.parametrize(
    "name", ["thesis.txt", "data.json", "config.toml.bak", "checkpoints/best.pt", ".manyheads.txt"]
)
def test_a_folder_with_other_files_is_refused(toy, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(InputError, match="is no run's folder and not empty"):
        toy.create(tmp_path)
    assert toy.files(tmp_path) == {name: b"mine"}


def test_a_run_without_its_config_is_not_written_over(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 3)
    (path / "config.toml").unlink()
    before = toy.files(path)
    with pytest.raises(InputError, match="not empty"):
        toy.create(path)
    with pytest.raises(InputError, match=r"holds no run: there is no config\.toml"):
        RunFolder.open(path)
    assert toy.files(path) == before


def test_a_folder_that_cannot_be_written_is_refused(toy, tmp_path):
    (tmp_path / "file").write_text("mine")
    for path in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/run")):
        with pytest.raises(InputError) as caught:
            toy.create(path)
        assert one_line(caught).startswith(f"{path} cannot be used as a run's folder: ")
    with pytest.raises(InputError, match="there is no folder"):
        RunFolder.open(tmp_path / "nothing")


@pytest.mark.parametrize("content", [b"{", b"\xff", None])
def test_damaged_data_is_one_line(toy, tmp_path, content):
    path = toy.finished(tmp_path / "run", 1)
    (path / "data.json").unlink() if content is None else (path / "data.json").write_bytes(content)
    with RunFolder.open(path, write=False) as folder, pytest.raises(InputError, match=r"data\.json") as caught:
        _ = folder.data
    one_line(caught)


def test_one_process_at_a_time(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 2)
    with RunFolder.open(path) as folder:
        folder.restore()
        with pytest.raises(InputError) as caught:
            RunFolder.open(path)
        assert one_line(caught) == f"another process is running in {path}"
        with RunFolder.open(path, write=False) as other:
            assert len(other.rows()) == 3
            with pytest.raises(RuntimeError):
                other.restore()
        toy.play(folder, 3, first=3)
    with RunFolder.open(path) as folder:
        assert folder.restore().position == 3


def test_the_order_of_calls_is_checked(toy, tmp_path):
    path = toy.finished(tmp_path / "run", 2)
    with RunFolder.open(path) as folder:
        for call in (lambda: folder.append({}), folder.store, lambda: folder.commit(3, toy.server(3), {})):
            with pytest.raises(RuntimeError, match="restore"):
                call()
        folder.restore()
        for position in (2, 4):
            with pytest.raises(ValueError, match="after commit 2"):
                folder.commit(position, toy.server(position), {})
        folder.commit(3, toy.server(3), {})


def test_a_full_disk_is_one_line_and_the_run_goes_on_later(toy, tmp_path, steps):
    path = toy.finished(tmp_path / "run", 2)
    with RunFolder.open(path) as folder:
        folder.restore()
        steps.record()
        toy.play(folder, 3, first=3)
        count = len(steps.names)
    for number in range(count):
        path = toy.finished(tmp_path / f"run{number}", 2)
        with RunFolder.open(path) as folder:
            folder.restore()
            steps.fail_at(number, OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(RunError) as caught:
                toy.play(folder, 3, first=3)
            assert "No space left on device" in one_line(caught)
            steps.stop()
            position = folder.restore().position
            assert position in (2, 3)
            toy.play(folder, 5, first=position + 1)
        assert toy.restored(path)[0] == toy.expected(5)


def test_a_private_state_lies_in_its_clients_folder_only(tmp_path, toy):
    marks = {client: torch.randint(0, 2**31, (16,)) for client in range(4)}
    path = tmp_path / "run"
    with toy.create(path) as folder:
        store = folder.store()
        for position in range(3):
            for client, mark in marks.items():
                store.put(client, PrivateState(model=Tree({"head.weight": mark + position})))
            folder.commit(position, toy.server(position), {})
    files = toy.files(path)
    for client, mark in marks.items():
        for position in (1, 2):
            content = (mark + position).numpy().tobytes()
            assert [name for name, data in files.items() if content in data] == [
                f"clients/{client}/{position}.safetensors"
            ]


def test_a_commit_costs_what_changed(toy, tmp_path, steps):
    sizes = {}
    for clients in (4, 200):
        with toy.create(tmp_path / str(clients)) as folder:
            store = folder.store()
            for client in range(1000, 1000 + clients):
                store.put(client, toy.state(client, 1.0))
            folder.commit(0, toy.server(0), {})
            for position in (1, 2, 3):
                before = sum(map(len, toy.files(folder.path).values()))
                steps.record()
                store.put(1001, toy.state(1001, 2.0))
                folder.commit(position, toy.server(0), {})
                steps.stop()
                sizes.setdefault(position, set()).add(
                    (len(steps.names), (folder.path / "checkpoints" / f"{position}.safetensors").stat().st_size)
                )
            grown = sum(map(len, toy.files(folder.path).values())) - before
            sizes.setdefault("last", []).append(grown)
    assert all(len(sizes[position]) == 1 for position in (1, 2, 3))
    assert abs(sizes["last"][0] - sizes["last"][1]) < 10  # the digits of a length


def test_a_folder_is_the_same_one_wherever_the_process_goes(toy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with toy.create(Path("run")) as folder:
        assert folder.path == Path("run")
        toy.play(folder, 1)
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir("elsewhere")
        toy.play(folder, 3, first=2)
        assert folder.rows() == toy.expected(3)["rows"]
        assert dict(folder.store()) == toy.expected(3)["private"]
        (tmp_path / "run" / "checkpoints").rename(tmp_path / "lost")
        with pytest.raises(RunError, match=r"^run cannot be resumed"):
            folder.restore()
    assert list(Path().iterdir()) == []
