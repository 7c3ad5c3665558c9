"""A run that is killed or loses power between two file operations is as of its last commit, or the one under way."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from manyheads.errors import InputError
from manyheads.storage.run_folder import RunFolder

LAST = 4


class Disk:
    """What a disk surely holds: bytes since their ``sync``, names since their folder's ``sync_folder``.

    ``image`` lays out a folder after a crash. Bytes that were not synced are lost, new names in folders that were not
    synced too ("names lost"), or not ("names kept": file systems may write names before contents). With "everything",
    only the process was killed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.contents: dict[int, bytes] = {}
        self.folders: dict[Path, dict[str, int | None]] = {}
        self.pinned = []  # an open file keeps its number from being given to another one

    def step(self, name: str) -> None:
        moment, operation, path = name.split(" ", 2)
        path = Path(path)
        if moment == "before" and operation in ("remove", "rename") and path.exists():
            self.pinned.append(path.open("rb"))
        if moment == "after" and operation == "sync":
            self.contents[path.stat().st_ino] = path.read_bytes()
        if moment == "after" and operation == "sync_folder":
            self.folders[path] = self.listing(path)

    def listing(self, folder: Path) -> dict[str, int | None]:
        return {entry.name: None if entry.is_dir() else entry.stat().st_ino for entry in folder.iterdir()}

    def image(self, target: Path, how: str) -> Path:
        if how == "everything":
            if self.root.exists():
                shutil.copytree(self.root, target)
        else:
            self._lay_out(self.root, target, how)
        return target

    def _lay_out(self, folder: Path, target: Path, how: str) -> None:
        target.mkdir()
        names = self.folders.get(folder, {}) if how == "names lost" else self.listing(folder) if folder.exists() else {}
        for name, number in names.items():
            if number is None:
                self._lay_out(folder / name, target / name, how)
            else:
                (target / name).write_bytes(self.contents.get(number, b""))


@pytest.mark.parametrize("how", ["everything", "names kept", "names lost"])
def test_every_instant_of_a_run(toy, tmp_path, steps, how):
    root = tmp_path / "run"
    disk = Disk(root)
    images = []
    done = -1

    def step(name):
        disk.step(name)
        images.append((disk.image(tmp_path / f"image{len(images)}", how), done))

    steps.call(step)
    folder = toy.create(root)
    store = folder.store()
    created = len(images)
    for position in range(LAST + 1):
        toy.play_one(folder, store, position)
        done = position
    folder.close()
    steps.stop()

    reached = set()
    for number, (image, done) in enumerate(images):
        if not (image / "config.toml").exists():
            assert number < created
            with pytest.raises(InputError, match=r"no run|no folder"):
                RunFolder.open(image)
            toy.create(image).close()
        state, warnings = toy.restored(image)
        assert warnings == []
        position = -1 if state is None else state["position"]
        assert position in (done, done + 1)
        if state is not None:
            assert state == toy.expected(position)
        reached.add((position, position - done))
        if number % 10 == 0 and number > created:
            toy.finish(image, LAST)
    # Both outcomes occur for each commit.
    assert {(position, 0) for position in range(-1, LAST)} <= reached
    assert {(position, 1) for position in range(LAST + 1)} <= reached


def test_an_exception_at_every_step_of_a_commit(toy, tmp_path, steps, killed):
    base = toy.finished(tmp_path / "base", 2)
    path = tmp_path / "run"
    outcomes = []
    for number in range(1000):
        shutil.copytree(base, path)
        with RunFolder.open(path) as folder:
            folder.restore()
            store = folder.store()
            steps.fail_at(number, killed())
            try:
                toy.play_one(folder, store, 3)
                finished = True
            except killed:
                finished = False
            steps.stop()
        state, warnings = toy.restored(path)
        assert warnings == []
        outcomes.append(state["position"])
        assert state == toy.expected(state["position"])
        if number % 5 == 0:
            toy.finish(path, 6)
        shutil.rmtree(path)
        if finished:
            break
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {2, 3}
    assert len(outcomes) > 30


def damage_nothing(path: Path) -> None:
    """The newest checkpoint is whole."""


def damage_a_private_state(path: Path) -> None:
    (file,) = (path / "clients").glob("5/4.safetensors")
    file.write_bytes(b"")


def damage_rows(path: Path) -> None:
    rows = path / "rounds.jsonl"
    lines = rows.read_bytes().splitlines(keepends=True)
    assert lines[5:] == [b'{"round": 5}\n']  # of the commit that was killed
    rows.write_bytes(b"".join(lines[:5])[:-3])


@pytest.mark.parametrize(("damage", "expected"), [(damage_nothing, 4), (damage_a_private_state, 3), (damage_rows, 3)])
def test_killed_again_while_restoring(toy, tmp_path, steps, killed, damage, expected):
    """The second kill comes at every step of the restore after a kill just before the commit of round 5."""
    base = toy.finished(tmp_path / "base", 4)
    with RunFolder.open(base) as folder:
        folder.restore()
        folder.append({"round": 5})
        store = folder.store()
        store.put(0, toy.state(0, 99.0))
        steps.call(lambda name: kill_before_manifest(name, killed))
        with pytest.raises(killed):
            folder.commit(5, toy.server(5), {})
        steps.stop()
    damage(base)
    path = tmp_path / "run"
    for number in range(1000):
        shutil.copytree(base, path)
        with RunFolder.open(path) as folder:
            steps.fail_at(number, killed())
            try:
                folder.restore()
                finished = True
            except killed:
                finished = False
            steps.stop()
        state, _ = toy.restored(path)
        assert state == toy.expected(expected)
        toy.finish(path, 6)
        shutil.rmtree(path)
        if finished:
            break
    assert number > 10


def kill_before_manifest(name: str, killed: type[BaseException]) -> None:
    if name.startswith("before rename") and name.endswith("5.json"):
        raise killed


@pytest.mark.slow
def test_sigkill_at_random_moments(tmp_path):
    program = Path(__file__).with_name("kill_loop.py")
    result = subprocess.run(
        [sys.executable, str(program), str(tmp_path / "run"), "10"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 0
