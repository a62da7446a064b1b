"""The systemd units, read by systemd itself."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.docs import ROOT
from tests.support.programs import require_program

pytestmark = pytest.mark.deploy

UNITS = ROOT / "deploy" / "systemd"
WORST_SCORE = 2.0
"""Of systemd's ten, which is a service without any confinement."""


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is here."""
    shutil.copytree(UNITS, tmp_path / "units")
    for path in (tmp_path / "units").glob("*.service"):
        path.write_text(
            path.read_text("utf-8").replace("/usr/local/lib/antiphon/bin/antiphon", sys.executable)
        )
    return tmp_path / "units"


def test_systemd_understands_every_line(units: Path) -> None:
    program = require_program("systemd-analyze", "systemd")
    done = subprocess.run(
        [program, "verify", *sorted(units.iterdir())], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["antiphon.service", "antiphon-backup.service"])
def test_the_services_are_confined(units: Path, name: str) -> None:
    program = require_program("systemd-analyze", "systemd")
    command = [program, "security", "--offline=true", "--no-pager", str(units / name)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (score,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    assert float(score) <= WORST_SCORE
