"""The workflows that release and publish: each job has the rights that it needs, and no password is kept."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # noqa: TID251 - only safe_load of files of this repository

from tests.support.docs import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
ON = True
"""The key `on`, as YAML 1.1 reads it."""


def load(name: str) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))
    return loaded


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_grants_nothing_but_what_a_job_asks_for(path: Path) -> None:
    workflow = load(path.name)
    assert workflow["permissions"] == {}
    assert all(job["permissions"] for job in workflow["jobs"].values())
    assert "secrets." not in path.read_text("utf-8") and "write-all" not in path.read_text("utf-8")


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_each_action_is_named_by_a_version(path: Path) -> None:
    steps = [step for job in load(path.name)["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    version = r"[\w.-]+/[\w.-]+@(v\d+|release/v\d+|[0-9a-f]{40})"
    assert actions and all(re.fullmatch(version, action) for action in actions)


def test_only_the_owner_publishes_and_without_a_password() -> None:
    workflow = load("publish.yml")
    assert list(workflow[ON]) == ["workflow_dispatch"]
    check, publish = workflow["jobs"]["check"], workflow["jobs"]["publish"]
    assert publish["needs"] == "check" and publish["environment"] == "pypi"
    assert publish["permissions"] == {"id-token": "write"} and "write" not in check["permissions"].values()
    *_, upload = publish["steps"]
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert upload["with"] == {"attestations": True}


def test_what_is_published_has_its_digest_and_its_provenance_checked() -> None:
    *commands, upload = load("publish.yml")["jobs"]["check"]["steps"]
    script = "\n".join(step["run"] for step in commands)
    assert "sha256sum --check SHA256SUMS" in script and "gh attestation verify" in script
    signer = re.search(r"\$GH_REPO/(\.github/workflows/\S+\.yml)", script)
    assert signer and (ROOT / signer[1]).is_file()
    assert upload["with"]["path"].split() == ["dist/*.whl", "dist/*.tar.gz"]


def test_a_tag_makes_files_with_provenance_after_the_gate() -> None:
    workflow = load("release.yml")
    files = workflow["jobs"]["files"]
    assert list(workflow[ON]) == ["push"] and files["needs"] == "gate"
    assert workflow["jobs"]["gate"]["steps"][-1] == {"run": ".ci/run"}
    steps = [step.get("run") or step["uses"] for step in files["steps"]]
    made = steps.index("make release")
    assert steps[made + 1].startswith("actions/attest-build-provenance@") and "--draft" in steps[made + 2]
