"""docs/deploy/compose.yaml and docs/replication.md: a pair and three Sentinels fit together.

No container is started: the settings are given to the program, and compared with one another.
"""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from kvstream.cli.app import main
from kvstream.cli.serve import serve
from kvstream.server.inert_settings import KEPT

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"
PASSWORD = "secret"


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def read_mapping(lines: list[str], indent: int, anchors: dict[str, Any]) -> dict[str, Any]:
    """Take the lines of a mapping, in the part of YAML that the file uses."""
    found: dict[str, Any] = {}
    while lines and indent_of(lines[0]) == indent:
        name, _, value = lines.pop(0).strip().partition(":")
        value, anchor = value.strip(), ""
        if name == "<<":
            found |= anchors[value.removeprefix("*")]
            continue
        if value.startswith("&"):
            anchor, value = value.removeprefix("&"), ""
        found[name] = read_value(lines, value, indent, anchors)
        anchors[anchor] = found[name]
    return found


def read_value(lines: list[str], value: str, indent: int, anchors: dict[str, Any]) -> Any:
    inner = indent_of(lines[0]) if lines else 0
    if value == "|":
        text = ""
        while lines and indent_of(lines[0]) > indent:
            text += lines.pop(0)[inner:] + "\n"
        return text
    if value:
        return json.loads(value) if value[0] in "[{" else value
    if inner <= indent:
        return None
    if not lines[0].lstrip().startswith("- "):
        return read_mapping(lines, inner, anchors)
    items = []
    while lines and indent_of(lines[0]) == inner:
        items.append(json.loads(lines.pop(0).strip().removeprefix("- ")))
    return items


@pytest.fixture(scope="module")
def recipe() -> dict[str, Any]:
    text = (DOCS / "deploy" / "compose.yaml").read_text()
    filled = re.sub(r"\$\{KVSTREAM_PASSWORD[^}]*\}", PASSWORD, text)
    assert "${" not in filled
    lines = [line for line in filled.splitlines() if line.strip() and line.lstrip()[0] != "#"]
    found: dict[str, Any] = read_mapping(lines, 0, {})
    assert not lines
    return found


def directives(recipe: dict[str, Any]) -> list[list[str]]:
    return [line.split() for line in recipe["configs"]["sentinel"]["content"].splitlines()]


def address_of(service: dict[str, Any]) -> str:
    return str(service["networks"]["pair"]["ipv4_address"])


def test_the_servers_start_with_valid_settings(recipe: dict[str, Any], tmp_path: Path) -> None:
    content = recipe["configs"]["server"]["content"]
    settings = tomllib.loads(content)["config"]
    assert {name.encode() for name in settings} <= KEPT.keys()
    assert settings["masterauth"] == PASSWORD
    config = tmp_path / "kvstream.toml"
    config.write_text(content)
    for name in ("one", "two"):
        service = recipe["services"][name]
        assert service["environment"]["KVSTREAM_SERVE_REQUIREPASS"] == PASSWORD
        assert service["configs"][0]["target"] in service["command"]
        words = [str(config) if word.startswith("/etc/") else word for word in service["command"]]
        with serve.make_context("serve", words, **main.context_settings):
            pass
    build = recipe["services"]["one"]["build"]
    assert (DOCS / "deploy" / build["context"] / build["dockerfile"]).exists()


def test_the_replica_and_the_sentinels_name_the_primary(recipe: dict[str, Any]) -> None:
    services = recipe["services"]
    primary = address_of(services["one"])
    assert services["two"]["command"][-2:] == ["--replicaof", f"{primary}:6379"]
    found = {words[1]: words[2:] for words in directives(recipe) if words[0] == "sentinel"}
    assert found["monitor"] == ["orders", primary, "6379", "2"]
    assert found["auth-pass"] == ["orders", PASSWORD]
    lease_ms = KEPT[b"replica-lease-ms"][0]
    assert isinstance(lease_ms, int)
    assert int(found["down-after-milliseconds"][1]) > lease_ms


def test_each_service_has_an_address_and_a_volume_of_its_own(recipe: dict[str, Any]) -> None:
    services = recipe["services"].values()
    assert len(services) == 5
    assert len({address_of(each) for each in services}) == 5
    volumes = [each["volumes"][0].split(":")[0] for each in services]
    assert sorted(volumes) == sorted(recipe["volumes"])
    assert {each["configs"][0]["source"] for each in services} == set(recipe["configs"])


def test_sentinel_takes_its_settings(recipe: dict[str, Any], tmp_path: Path) -> None:
    """The page has the same lines, but for the password."""
    page = (DOCS / "replication.md").read_text()
    for words in directives(recipe):
        if words[1] in ("down-after-milliseconds", "failover-timeout"):
            assert " ".join(words) in page
    program = shutil.which("redis-sentinel")
    if program is None:
        pytest.skip("redis-sentinel is not installed")
    file = tmp_path / "sentinel.conf"
    lines = recipe["configs"]["sentinel"]["content"].replace("port 26379", "port 0")
    file.write_text(lines + "nosuch setting\n")  # so it ends, and names the first line it refuses
    ended = subprocess.run([program, str(file)], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 1
    assert "'nosuch setting'" in ended.stdout + ended.stderr


def test_the_settings_of_the_page_are_valid(tmp_path: Path) -> None:
    page = (DOCS / "replication.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert shown
    for number, text in enumerate(shown):
        config = tmp_path / f"{number}.toml"
        config.write_text(text)
        assert {name.encode() for name in tomllib.loads(text).get("config", {})} <= KEPT.keys()
        with serve.make_context("serve", ["--config", str(config)], **main.context_settings):
            pass
