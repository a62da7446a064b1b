"""The job that reads documents can open no connection and no process."""

import subprocess
import sys

import pytest

ATTEMPTS = {
    "socket.__new__": "import socket; socket.socket()",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('localhost', 80)",
    "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    "os.system": "import os; os.system('true')",
    "os.fork": "import os; os.fork()",
}
JOB = """
import sys
from antiphon.retrieval.ingest.reading_job import run_reading
from antiphon.domain.values import asdict
from antiphon.retrieval.ingest.documents import DEFAULT_LIMITS
run_reading({"path": sys.argv[1], "file_name": "a.txt", "media_type": "", "limits": asdict(DEFAULT_LIMITS)})
"""


@pytest.mark.parametrize("event", ATTEMPTS)
def test_a_reader_reaches_nothing_else(tmp_path, event):
    (tmp_path / "upload").write_bytes(b"x")
    command = [sys.executable, "-c", JOB + ATTEMPTS[event], str(tmp_path / "upload")]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert f"PermissionError: a document's reader may not do {event}" in run.stderr
