"""The job that reads documents can open no connection and no process."""

import subprocess
import sys

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
TRY = """
try:
    {attempt}
    print("nothing was refused")
except PermissionError as refused:
    print(refused)
"""


def test_a_reader_reaches_nothing_else(tmp_path):
    (tmp_path / "upload").write_bytes(b"x")
    attempts = "".join(TRY.format(attempt=attempt) for attempt in ATTEMPTS.values())
    command = [sys.executable, "-c", JOB + attempts, str(tmp_path / "upload")]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines() == [f"a document's reader may not do {event}" for event in ATTEMPTS]
