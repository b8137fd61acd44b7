"""What `register` hands to a host, and that manifest, README and code say the same."""

from __future__ import annotations

import logging
import re
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from support import ROOT, FolderCase, StandInHost, load_plugin, plugin_module

policy = plugin_module("policy")
MANIFEST = (ROOT / "plugin.yaml").read_text(encoding="utf-8")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def listed(key: str) -> list[str]:
    """The items of one of the manifest's lists."""
    block = re.search(rf"^{key}:\n((?:  - .*\n)+)", MANIFEST, re.MULTILINE)
    return re.findall(r"  - (\w+)", block.group(1)) if block else []


def schema() -> dict[str, dict[str, str]]:
    """`config_schema` as key -> its own lines."""
    block = MANIFEST.partition("config_schema:\n")[2]
    found: dict[str, dict[str, str]] = {}
    for line in block.splitlines():
        if match := re.match(r"  (\w+):$", line):
            found[match.group(1)] = {}
            last = match.group(1)
        elif match := re.match(r"    (\w+): (.*)$", line):
            found[last][match.group(1)] = match.group(2)
    return found


class Registration(FolderCase):
    def test_the_manifest_names_exactly_what_is_registered(self):
        host = StandInHost({"db_path": str(self.folder / "x.db")})
        self.assertEqual(sorted(host.hooks), sorted(listed("provides_hooks")))
        self.assertEqual(sorted(host.middleware), sorted(listed("provides_middleware")))
        self.assertEqual(sorted(host.tools), sorted(listed("provides_tools")))
        self.assertEqual(sorted(host.tools), sorted(policy.OUR_TOOLS))
        self.assertEqual(list(host.commands), ["many"])
        self.assertEqual(list(host.transports), ["manyhands"])

    def test_registering_opens_no_file(self):
        StandInHost({"db_path": str(self.folder / "deep" / "x.db")})
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_every_surface_that_a_host_lacks_is_left_out_with_one_line(self):
        for missing in ("register_middleware", "register_tool", "register_command",
                        "register_approval_transport"):
            with self.subTest(missing=missing), self.assertLogs("manyhands", "WARNING") as said:
                ctx = self.bare_host(missing)
                load_plugin().register(ctx)
                self.assertEqual(len(said.records), 1)
                self.assertIn(missing, said.output[0])
                self.assertIn("pre_tool_call", ctx.seen)

    def test_without_hooks_nothing_is_registered(self):
        ctx = self.bare_host("register_hook")
        with self.assertLogs("manyhands", "ERROR"):
            load_plugin().register(ctx)
        self.assertEqual(ctx.seen, [])

    def test_a_host_without_settings_or_unload_gets_the_defaults(self):
        ctx = self.bare_host("get_config", "on_unload")
        load_plugin().register(ctx)
        self.assertIn("pre_llm_call", ctx.seen)

    def bare_host(self, *missing: str) -> Any:
        seen: list[str] = []
        def note(name: str = "", *_args: object, **keywords: object) -> None:
            seen.append(name or str(keywords.get("name", "")))
        surfaces = ("register_hook", "register_middleware", "register_tool", "register_command",
                    "register_approval_transport")
        ctx = SimpleNamespace(seen=seen, **{s: note for s in surfaces if s not in missing})
        if "get_config" not in missing:
            ctx.get_config = {"db_path": str(self.folder / "x.db")}.get
        return ctx


class Settings(FolderCase):
    def test_schema_readme_and_code_list_the_same_settings(self):
        table = re.findall(r"^\| `(\w+)` \| (?:`|unset|empty)", README, re.MULTILINE)
        self.assertEqual(table, list(policy.SETTING_NAMES))
        self.assertEqual(list(schema()), list(policy.SETTING_NAMES))

    def test_the_schema_s_defaults_and_choices_are_the_code_s(self):
        defaults = policy.Settings()
        for name, lines in schema().items():
            with self.subTest(name=name):
                value = getattr(defaults, name)
                written = "" if value is None else str(getattr(value, "value", value))
                written = written.lower() if isinstance(value, bool) else written
                self.assertEqual(lines.get("default", "").strip('"'), written)
                for choice in re.findall(r"\w+", lines.get("choices", "")):
                    self.assertEqual(policy.read_settings({name: choice}).problems, ())

    def test_a_change_is_seen_at_the_next_look_and_a_wrong_value_falls_back_out_loud(self):
        host = StandInHost({"db_path": str(self.folder / "x.db")})
        self.addCleanup(host.unload)
        code = host.terminal_command("claim").rstrip().split()[-1]
        host.command("111", f"claim {code}", name="Boss")
        host.config["unknown_sender_policy"] = "open"
        self.assertEqual(host.say("999", "hi", name="Eve").model_calls, 1)
        with self.assertLogs("manyhands", logging.WARNING):
            host.config["unknown_sender_policy"] = "everybody"
            self.assertIn("private", host.say("998", "hi", name="Bob").reply)
        self.assertIn("unknown_sender_policy", host.command("111", "whoami", name="Boss"))


class TheTree(unittest.TestCase):
    def test_the_top_level_holds_what_a_directory_plugin_needs_and_nothing_else(self):
        known = {"plugin.yaml", "__init__.py", "policy.py", "identity.py", "hooks.py", "store.py",
                 "tools.py", "transport.py", "commands.py", "prompt.py", "tests", "README.md",
                 "LICENSE", "CHANGELOG.md", "pyproject.toml", "__pycache__"}
        here = {path.name for path in ROOT.iterdir() if not path.name.startswith(".")}
        self.assertEqual(here - known, set())

    def test_each_line_of_the_safety_contract_has_tests_named_after_it(self):
        text = "".join(path.read_text(encoding="utf-8")
                       for path in Path(__file__).parent.glob("test_*.py"))
        named = {int(n) for n in re.findall(r"class Contract(\d\d)", text)}
        self.assertEqual(named, set(range(1, 21)))


if __name__ == "__main__":
    unittest.main()
