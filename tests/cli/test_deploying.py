"""docs/deploy: the program accepts the options shown, and the figures are those of the program."""

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path
from urllib.error import URLError

import click
import pytest
from click.testing import CliRunner

from kvstream.cli.app import main
from kvstream.cli.exit_codes import ExitCode
from kvstream.cli.queues.jobs import work
from kvstream.cli.serve import serve
from kvstream.jobs.processes import LATE_S
from kvstream.server.runtime.limits import DESCRIPTORS
from kvstream.types.options import MAXCLIENTS, SHUTDOWN_TIMEOUT_S
from tests.cli.program import Program
from tests.patience import PATIENCE_S
from tests.ports import free_port
from tests.serving import ServerProcess

DEPLOY = Path(__file__).resolve().parent.parent.parent / "docs" / "deploy"
OPTIONS = {
    name
    for parameter in serve.params
    if isinstance(parameter, click.Option)
    for name in parameter.opts
}


@pytest.fixture(scope="module")
def unit() -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "kvstream.service")
    return parser["Service"]


def options_of(words: list[str]) -> set[str]:
    return {word for word in words if word.startswith("--")}


def test_the_unit_starts_the_program_with_valid_options(
    unit: configparser.SectionProxy,
) -> None:
    words = shlex.split(unit["ExecStart"])
    assert words[0].endswith("/kvstream")
    assert words[1] == "serve"
    assert options_of(words) <= OPTIONS
    assert unit["Type"] == "notify"


def test_the_unit_allows_time_to_stop_and_enough_descriptors(
    unit: configparser.SectionProxy,
) -> None:
    assert int(unit["TimeoutStopSec"].removesuffix("s")) > 2 * SHUTDOWN_TIMEOUT_S
    assert int(unit["LimitNOFILE"]) == MAXCLIENTS + DESCRIPTORS


def test_systemd_does_not_restart_after_errors_that_need_an_operator(
    unit: configparser.SectionProxy,
) -> None:
    codes = {int(code) for code in unit["RestartPreventExitStatus"].split()}
    assert codes == {ExitCode.USAGE, ExitCode.DAMAGED, ExitCode.TAKEN}


def test_the_unit_of_workers_lets_its_jobs_finish() -> None:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "kvstream-work@.service")
    unit = parser["Service"]
    words = shlex.split(unit["ExecStart"])
    context = work.make_context("work", words[2:], **main.context_settings)
    assert context.params["grace"] + LATE_S < 60 * int(unit["TimeoutStopSec"].removesuffix("min"))
    assert context.params["app_version"] == "%i"
    assert unit["KillMode"] == "mixed"  # else each process gets two signals
    assert unit["Restart"] == "on-failure"


def test_the_container_starts_the_program_with_valid_options() -> None:
    (entry,) = re.findall(r"^ENTRYPOINT (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.M)
    words = re.findall(r'"([^"]*)"', entry)
    assert words[1] == "serve"
    assert options_of(words) <= OPTIONS


def test_the_health_check_of_the_container_asks_the_server(tmp_path: Path) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    (command,) = re.findall(r"^ +CMD (\[.*\])$", text, re.MULTILINE)
    (port,) = re.findall(r"^ENV KVSTREAM_SERVE_METRICS_PORT=(\d+)$", text, re.MULTILINE)
    check: str = json.loads(command)[-1]
    assert f":{port}/healthz" in check
    own_port = free_port()
    check = check.replace(port, str(own_port)).replace("timeout=4", f"timeout={PATIENCE_S}")
    server = ServerProcess(tmp_path / "store", "--metrics-port", str(own_port))
    try:
        exec(check, {})
    finally:
        server.process.terminate()
        server.process.communicate(timeout=PATIENCE_S)
    with pytest.raises(URLError):
        exec(check, {})


def test_the_settings_shown_exist() -> None:
    shown = re.findall(r"```toml\n(.*?)```", (DEPLOY / "README.md").read_text(), re.DOTALL)
    settings = tomllib.loads("\n".join(shown))
    assert {"--" + name for name in settings} <= OPTIONS


def test_the_exit_codes_shown_are_those_of_serve() -> None:
    shown = re.findall(r"^\| (\d) \|", (DEPLOY / "README.md").read_text(), re.M)
    ends = {ExitCode.OK, ExitCode.FAILED, ExitCode.USAGE, ExitCode.LOCKED, ExitCode.TAKEN}
    assert {int(code) for code in shown} == ends | {ExitCode.DAMAGED, ExitCode.UNAVAILABLE}


def test_options_of_rocksdb_are_checked_before_the_store_is_opened(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    for words, message in (
        ("block_cache", "block_cache: must be NAME=VALUE"),
        ("max_background_jobs=1", "max_background_jobs must be a whole number of 2 to 64"),
        ("trees.compresion=lz4", "did you mean 'trees.compression'?"),
    ):
        config.write_text(f'rocksdb = "{words}"\n')
        for arguments in (["--rocksdb", words], ["--config", str(config)]):
            result = CliRunner().invoke(
                main, ["serve", *arguments, "--dir", str(tmp_path / "store")]
            )
            assert result.exit_code == 2
            assert message in " ".join(result.output.split())
    assert not (tmp_path / "store").exists()


def test_options_of_rocksdb_reach_the_store_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "kvstream.toml"
    config.write_text('rocksdb = "max_background_jobs=5; messages.write_buffer_size=9M;"\n')
    arguments = ["--config", str(config)]
    with serve.make_context("serve", arguments, **main.context_settings) as context:
        assert context.params["rocksdb"] == {
            "max_background_jobs": "5",
            "messages.write_buffer_size": "9M",
        }


def test_every_command_opens_a_store_that_a_group_can_write_to_when_told(orders: Program) -> None:
    def mounted() -> None:
        orders.directory.chmod(0o2770)
        for path in orders.directory.iterdir():
            path.chmod(0o660)

    mounted()
    said = orders("ls", code=5).stderr
    assert "(mode 2770)" in said
    assert "--trust-group (KVSTREAM_TRUST_GROUP=1)" in said
    for words in (("--trust-group", "ls"), ("ls", "--trust-group"), ("recover", "--trust-group")):
        mounted()
        orders(*words)
    mounted()
    orders("len", "orders", env={"KVSTREAM_TRUST_GROUP": "1"})
    assert orders.directory.stat().st_mode & 0o070
    orders("add", "--trust-group", "orders", "a=1")
    assert not orders.directory.stat().st_mode & 0o077
    orders("ls")


def test_a_shell_passes_its_trust_on(orders: Program) -> None:
    orders.directory.chmod(0o2770)
    orders("--trust-group", "shell", input="len orders\n")
