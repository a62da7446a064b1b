"""Schemathesis, as a command, asks the server what its own OpenAPI document allows and what it forbids, on
every path: nothing fails inside, and no status, header or body is outside the document."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.model_files import BUNDLED
from tests.support.server import serving

COMMAND = Path(sys.executable).with_name("schemathesis")
HOOKS = Path(__file__).with_name("openapi") / "hooks.py"

EXCLUDED = "positive_data_acceptance"
"""What a schema cannot say of several fields together (echo beside max_tokens 0, one guided option at most)
is refused with 400: tests/contract/test_pages.py and its neighbours ask what has to be taken."""


NOT_HERE = "^/admin/|^/jamai/api/v2/projects$"
"""The admin API is asked with keys. Other methods of JamAI's projects are no wrong methods, but parts of the
product that answer 501."""

KEYED = f"{EXCLUDED},unsupported_method"
"""Where a key is asked for, a wrong method comes with two different keys, which is refused before it."""


def attack(folder: Path, *options: str, excluded: str = EXCLUDED, keyed: bool = False) -> None:
    """Runs it against a server of its own, as the operator where it is `keyed`; its report is what the
    assertion shows."""
    adapters = {"ANTIPHON_LORA_DIRECTORIES": str(BUNDLED / "adapters")}
    if keyed:
        adapters |= {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(folder)}
    env = os.environ | {"SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(HOOKS.parent), "COLUMNS": "150"}
    with serving(env=adapters) as running:
        key = (folder / "admin.key").read_text().strip() if keyed else ""
        operator = ("-H", f"Authorization: Bearer {key}") if keyed else ()
        done = subprocess.run(
            [
                *(COMMAND, "run", f"{running.url}/openapi.json", "--no-color", "--continue-on-failure"),
                *("--exclude-checks", excluded, "--generation-database", "none", "--request-timeout", "60"),
                *("--warnings", "off", *operator, *options),
            ],
            cwd=folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout
        assert not running.records("internal_error")


ADMIN = ("--include-path-regex", "^/admin/|^/jamai/api/v2/pats")


@pytest.mark.timeout(600)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("phases", "count"), [("fuzzing", 2), pytest.param("examples,fuzzing", 8, marks=pytest.mark.soak)]
)
def test_a_few_requests_for_each_path(tmp_path: Path, phases: str, count: int) -> None:
    """With one, none of the requests is wrong on purpose."""
    options = ("--phases", phases, "--max-examples", str(count), "--seed", "6")
    attack(tmp_path, *options, "--exclude-path-regex", NOT_HERE)


@pytest.mark.timeout(600)
@pytest.mark.soak
def test_a_few_requests_for_each_path_of_the_admin_api(tmp_path: Path) -> None:
    phases = ("--phases", "examples,fuzzing", "--max-examples", "2", "--seed", "6")
    attack(tmp_path, *phases, *ADMIN, excluded=KEYED, keyed=True)


@pytest.mark.timeout(3600)
@pytest.mark.soak
def test_each_boundary_of_each_field_of_the_admin_api(tmp_path: Path) -> None:
    attack(tmp_path, "--phases", "coverage", "--seed", "6", *ADMIN, excluded=KEYED, keyed=True)


@pytest.mark.timeout(3600)
@pytest.mark.soak
def test_each_boundary_of_each_field(tmp_path: Path) -> None:
    """Ten thousand requests: every field at its bounds, missing, and of a wrong type."""
    attack(tmp_path, "--phases", "coverage", "--seed", "6", "--exclude-path-regex", NOT_HERE)


@pytest.mark.timeout(3600)
@pytest.mark.soak
def test_many_requests_for_each_path(tmp_path: Path) -> None:
    attack(tmp_path, "--max-examples", "200", "--max-time", "2400")
