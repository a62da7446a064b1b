"""scripts/check-system: what a stranger reads on a machine that lacks something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "check-system"


def check(python: str = sys.executable, **env: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], **env}
    return subprocess.run([str(SCRIPT), python], env=env, capture_output=True, text=True, check=False)


def test_a_machine_that_has_everything_hears_nothing():
    done = check()
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_without_python_the_line_installs_everything():
    done = check("python3.99")
    assert done.returncode == 1
    assert "apt-get install --yes python3.99 python3.99-venv libgomp1 libstdc++6\n" in done.stderr


# On each of these machines one module is shadowed by one that fails as on a machine without the package.
@pytest.mark.parametrize(
    ("module", "body", "packages"),
    [
        ("ensurepip", "raise ImportError", "python3-venv"),
        ("ctypes", "def CDLL(name):\n    if 'gomp' in name: raise OSError", "libgomp1"),
        ("ctypes", "def CDLL(name): raise OSError", "libgomp1 libstdc++6"),
    ],
)
def test_the_line_names_exactly_what_is_missing(tmp_path, module: str, body: str, packages: str):
    (tmp_path / f"{module}.py").write_text(body)
    (tmp_path / "python3").symlink_to(sys.executable)
    done = check(str(tmp_path / "python3"), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.endswith(f"apt-get install --yes {packages}\n")


def test_an_old_python_is_told_its_age(tmp_path):
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\necho 3.9 0\n")
    old.chmod(0o755)
    done = check(str(old))
    assert done.returncode == 1
    assert (
        done.stderr
        == f"{old} is Python 3.9; Antiphon needs 3.11 or newer. Name one: make PYTHON=python3.12\n"
    )


def test_a_python_that_does_not_run_is_not_a_missing_package(tmp_path):
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 127\n")
    broken.chmod(0o755)
    done = check(str(broken))
    assert (done.returncode, "apt-get" in done.stderr) == (1, False)
    assert "does not run" in done.stderr
