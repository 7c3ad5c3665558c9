"""A copy of this checkout, in which files are written and commands are run as a person would."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
COPIED = ("pyproject.toml", "src", "docs", *(f"tests/{name}.py" for name in ("conftest", "hand", "toys")))
COPIED += ("tests/algorithms/test_every_method.py",)

# One process for all steps, which loads torch once. It ends at the first command that fails, with its status.
RUNNER = """
import json, runpy, shlex, sys
from pathlib import Path

for step in json.load(sys.stdin):
    if isinstance(step, list):
        path, text = step
        Path(path).write_text(text, "utf-8")
        continue
    program, *words = shlex.split(step)
    words = words if program == "python" else ["-m", program, *words]
    sys.argv = words[words[0] == "-m":]
    try:
        (runpy.run_module if words[0] == "-m" else runpy.run_path)(sys.argv[0], run_name="__main__")
    except SystemExit as stopped:
        if stopped.code:
            raise
"""


def make(folder: Path) -> Path:
    """Copies what a method needs into ``folder``, which does not exist yet."""
    for name in COPIED:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, target)
    return folder


def run(folder: Path, steps: Sequence[str | tuple[str, str]]) -> subprocess.CompletedProcess[str]:
    """Runs steps in a copy: a command, ``manyheads ...`` or ``python ...``, or a path and the file's new text."""
    return subprocess.run(
        [sys.executable, "-c", RUNNER],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder / "src"), "COLUMNS": "200"},
        input=json.dumps(steps),
        capture_output=True,
        text=True,
        check=False,
    )
