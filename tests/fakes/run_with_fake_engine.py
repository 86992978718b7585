"""``gnomon run`` with the scripted server in the engine's place, as a real process to signal.

Usage: ``python run_with_fake_engine.py '{"server": ["--ttft-ms", "5"], "facts": {}}' RECIPE OUT``,
and ``--reuse`` after it. The scripted server reports the settings that the recipe asks for, changed
by ``facts``; ``command`` replaces the server's program altogether. Without ``"plan": "real"`` the
planner is scripted too, which saves seconds and knows no tokenizer for a replay.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gnomon.harness.adapters.catalogue import ADAPTERS
from gnomon.harness.adapters.gnomon import GnomonAdapter
from gnomon.harness.adapters.protocol import Command, FlagValue, Setting
from gnomon.harness.command import run_command
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.recipes.point import Point

PLAN = json.dumps({"ok": True, "refusals": [], "plan": {}})
SERVER = Path(__file__).with_name("openai_server.py")


@dataclass(frozen=True)
class FakeAdapter(GnomonAdapter):
    """Gnomon's adapter, except for the program that is started."""

    script: dict[str, Any] = field(default_factory=dict)

    def plan(self, model: str, flags: Mapping[str, FlagValue]) -> Command:
        if self.script.get("plan") == "real":
            return super().plan(model, flags)
        return Command((sys.executable, "-Sc", f"print({PLAN!r})"), {})

    def serve(self, point: Point, address: ServerAddress) -> Command:
        if "command" in self.script:
            return Command(tuple(self.script["command"]), {})
        facts: dict[str, Any] = {"model_fingerprint": "f" * 64}
        for setting in self.settings(point, {}):
            if setting.pointer.startswith("facts."):
                facts[setting.pointer.removeprefix("facts.")] = setting.asked
        facts |= self.script.get("facts", {})
        argv = [sys.executable, str(SERVER), "--host", address.host, "--port", str(address.port)]
        argv += ["--served-model-name", address.model, "--engine-name", "gnomon"]
        argv += ["--facts", json.dumps(facts), *self.script.get("server", [])]
        return Command(tuple(argv), {})

    def settings(self, point: Point, plan: Any) -> tuple[Setting, ...]:
        return super().settings(point, {})  # the scripted server allocates no blocks


if __name__ == "__main__":
    ADAPTERS["gnomon"] = FakeAdapter(script=json.loads(sys.argv[1]))
    reuse = "--reuse" in sys.argv[4:]
    sys.exit(run_command(Path(sys.argv[2]), Path(sys.argv[3]), reuse=reuse))
