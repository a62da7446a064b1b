"""A whole server of scripted engines, as a process: `python -m tests.engines.host.serve_scripted '{...}'`.

The real supervisor and real engine hosts; the HTTP process is `http_standin`. What the supervisor says is
printed as JSON.
"""

import json
import sys

from antiphon.errors import AntiphonError
from antiphon.processes.supervisor import Programs, ServingInfo, supervise
from antiphon.settings.models import AdapterSettings, ModelSettings
from antiphon.settings.schema import EngineSettings, Settings
from antiphon.settings.server import KnowledgeSettings, LogSettings, ServerSettings
from antiphon.telemetry.logs import configure


def main() -> int:
    asked = json.loads(sys.argv[1])
    settings = Settings(
        server=ServerSettings(
            port=asked.get("port", 0),
            workers=asked.get("workers", 1),
            drain_timeout=0.5,
            api_key=asked.get("api_key"),
        ),
        engine=EngineSettings(interpreter=asked.get("interpreter")),
        log=LogSettings(format="json"),
        knowledge=KnowledgeSettings(directory=asked.get("knowledge")),
        models=tuple(ModelSettings(name=name, path="no file") for name in asked.get("models", ["cantor"])),
        adapters=tuple(
            AdapterSettings(name=name, path=path, model="cantor")
            for name, path in asked.get("adapters", {}).items()
        ),
    )
    programs = Programs(
        engine=f"tests.support.host_engines:{asked.get('engine', 'create_endless_engine')}",
        http=asked.get("http", "tests.engines.host.http_standin"),
    )
    configure("info", "json")
    try:
        return supervise(settings, announce, programs)
    except AntiphonError as error:
        sys.stderr.write(f"antiphon: {error.message}\n")
        return 1


def announce(serving: ServingInfo) -> None:
    sys.stdout.write(json.dumps({"url": serving.url, "engines": sorted(serving.engines)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
