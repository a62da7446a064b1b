"""The systemd units, read by systemd itself."""

import os
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
WORST_SCORE_WITH_GPUS = 2.5


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """The units, with a program that is here."""
    shutil.copytree(UNITS, tmp_path / "units")
    for path in (tmp_path / "units").glob("*.service"):
        path.write_text(
            path.read_text("utf-8").replace("/usr/local/lib/antiphon/bin/antiphon", sys.executable)
        )
    return tmp_path / "units"


@pytest.fixture
def gpu_units(units: Path) -> Path:
    """The units with the drop-in."""
    assert (units / "antiphon.service.d" / "gpu.conf").exists()
    return units


@pytest.fixture
def plain_units(units: Path) -> Path:
    """The units without the drop-in, which is for machines with GPUs."""
    shutil.rmtree(units / "antiphon.service.d")
    return units


def verify(units: Path) -> tuple[int, str]:
    program = require_program("systemd-analyze", "systemd")
    files = [path for path in sorted(units.iterdir()) if path.is_file()]
    done = subprocess.run([program, "verify", *files], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def read_exposure(unit: Path) -> float:
    """systemd's score of a service's confinement."""
    program = require_program("systemd-analyze", "systemd")
    command = [program, "security", "--offline=true", "--no-pager", str(unit)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    (score,) = re.findall(r"Overall exposure level for \S+: ([\d.]+)", told)
    return float(score)


def test_systemd_understands_every_line(plain_units: Path) -> None:
    assert verify(plain_units) == (0, "")


def test_systemd_understands_the_drop_in_for_gpus(gpu_units: Path) -> None:
    assert verify(gpu_units) == (0, "")
    drop_in = gpu_units / "antiphon.service.d" / "gpu.conf"
    drop_in.write_text(drop_in.read_text("utf-8").replace("PrivateDevices", "PrivateDevises"))
    assert "PrivateDevises" in verify(gpu_units)[1], "the drop-in is read"


@pytest.mark.parametrize("name", ["antiphon.service", "antiphon-backup.service"])
def test_the_services_are_confined(plain_units: Path, name: str) -> None:
    assert read_exposure(plain_units / name) <= WORST_SCORE


def test_with_gpus_the_service_stays_confined(gpu_units: Path) -> None:
    score = read_exposure(gpu_units / "antiphon.service")
    shutil.rmtree(gpu_units / "antiphon.service.d")
    assert read_exposure(gpu_units / "antiphon.service") < score <= WORST_SCORE_WITH_GPUS


def test_the_backup_runs_the_command_as_the_timer_does(tmp_path: Path) -> None:
    """The line of ExecStart, with another folder and no systemd: three runs, of which two copies stay."""
    unit = (UNITS / "antiphon-backup.service").read_text("utf-8")
    (script,) = re.findall(r"^ExecStart=/bin/sh -c '(.*)'$", unit, re.MULTILINE)
    (kept,) = re.findall(r"^Environment=KEPT=(\d+)$", unit, re.MULTILINE)
    assert int(kept) >= 7
    script = script.replace("/usr/local/lib/antiphon/bin/antiphon", f"{sys.executable} -m antiphon")
    script = script.replace("/var/backups/antiphon", str(tmp_path / "backups")).replace("%%", "%")
    script = script.replace("exec ", "").replace("T%H%M%S", "T%H%M%S.%N")  # several in one second
    env = {"PATH": os.environ["PATH"], "ANTIPHON_HOME": str(tmp_path / "home"), "KEPT": "2"}
    for _ in range(3):
        subprocess.run(["/bin/sh", "-c", script], env=env, cwd=ROOT, check=True)
    backups = sorted((tmp_path / "backups").iterdir())
    assert len(backups) == 2 and all((each / "manifest.json").exists() for each in backups)
