"""A whole server of scripted engines, as a process: `python -m tests.engines.host.serve_scripted '{...}'`.

The real supervisor and real engine hosts; the HTTP process is `http_standin`. What the supervisor says is
printed as JSON.
"""

import json
import sys
import threading

from msgspec.structs import replace

from antiphon.errors import AntiphonError
from antiphon.processes.reload import ReloadHooks
from antiphon.processes.supervisor import Programs, ServingInfo, supervise
from antiphon.settings.models import AdapterSettings, AliasSettings, ModelSettings
from antiphon.settings.schema import EngineSettings, Settings
from antiphon.settings.server import KnowledgeSettings, LogSettings, ServerSettings
from antiphon.telemetry.logs import configure

asked = json.loads(sys.argv[1])
deeds: list[str] = asked.get("reload", [])


def main() -> int:
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
        return supervise(settings, announce, programs, reload=ReloadHooks(reload))
    except AntiphonError as error:
        sys.stderr.write(f"antiphon: {error.message}\n")
        return 1


def reload(current: Settings) -> tuple[Settings, tuple[str, ...]]:
    """The next of the given deeds, a defect or a file that never answers. Then each adds one alias."""
    deed = deeds.pop(0) if deeds else None
    if deed == "defect":
        raise RuntimeError("a secret of the settings")
    if deed == "hang":
        sys.stderr.write("reading the settings\n")
        sys.stderr.flush()
        threading.Event().wait()
    alias = AliasSettings(name=f"alias-{len(current.aliases)}", model="cantor")
    return replace(current, aliases=(*current.aliases, alias)), ()


def announce(serving: ServingInfo) -> None:
    sys.stdout.write(json.dumps({"url": serving.url, "engines": sorted(serving.engines)}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
