"""CONFIG REWRITE: changed settings are written to the file, and its other lines are kept."""

import os
from pathlib import Path

import pytest

from kvstream.server.options import ConfigFile, RewriteFailed, rewrite_text
from tests.server.asking import Failure
from tests.server.conftest import Serve, Served

OPTIONS = frozenset({"port", "requirepass", "timeout", "protected-mode"})


@pytest.mark.parametrize(
    ("before", "changed", "after"),
    [
        ("", {"timeout": "5"}, "timeout = 5\n"),
        ("timeout = 3\n", {"timeout": "5"}, "timeout = 5\n"),
        ("timeout=3 # why\nport = 1\n", {"timeout": "5"}, "timeout=5 # why\nport = 1\n"),
        ('"timeout" = 3', {"timeout": "5"}, '"timeout" = 5\n'),
        (
            "# mine\nport = 1\n\n# the end\n",
            {"timeout": "5"},
            "# mine\nport = 1\n\n# the end\ntimeout = 5\n",
        ),
        ("protected-mode = true", {"protected-mode": "no"}, "protected-mode = false\n"),
        (
            "requirepass = 'a#b' # secret\n",
            {"requirepass": 'q"\\#é'},
            'requirepass = "q\\"\\\\#é" # secret\n',
        ),
        (
            "port = 1\n",
            {"slowlog-max-len": "7"},
            'port = 1\n\n[config]\nslowlog-max-len = "7"\n',
        ),
        (
            "port = 1\n[config] # ours\nhz = 5\n\n[x]\n",
            {"slowlog-max-len": "7", "hz": "9", "timeout": "1"},
            'port = 1\ntimeout = 1\n[config] # ours\nhz = "9"\nslowlog-max-len = "7"\n\n[x]\n',
        ),
    ],
)
def test_a_setting_is_changed_in_its_line_or_added(
    before: str, changed: dict[str, str], after: str
) -> None:
    assert rewrite_text(before, changed, OPTIONS) == after
    assert rewrite_text(after, changed, OPTIONS) == after


@pytest.mark.parametrize(
    "before",
    ['requirepass = """\na"""\n', "port = \n", "config = 5\n", 'requirepass = "a" "b"\n'],
)
def test_unknown_lines_are_kept(before: str) -> None:
    with pytest.raises(RewriteFailed):
        rewrite_text(before, {"requirepass": "new", "hz": "9"}, OPTIONS)


def test_a_value_that_toml_cannot_hold_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "kvstream.toml"
    path.write_text("port = 1\n")
    for value in ("\x7f", b"\xff".decode("utf-8", "surrogateescape")):
        with pytest.raises(RewriteFailed):
            ConfigFile(path, OPTIONS).rewrite({"requirepass": value})
    assert path.read_text() == "port = 1\n"


def test_the_file_keeps_its_mode_and_a_link_stays_one(tmp_path: Path) -> None:
    path, link = tmp_path / "real.toml", tmp_path / "kvstream.toml"
    path.write_text("port = 1\n")
    path.chmod(0o640)
    link.symlink_to(path)
    ConfigFile(link, OPTIONS).rewrite({"timeout": "5"})
    assert link.is_symlink()
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("port = 1\ntimeout = 5\n", 0o640)
    assert sorted(os.listdir(tmp_path)) == ["kvstream.toml", "real.toml"]


def test_config_rewrite_writes_the_changes_of_config_set(serve: Serve, tmp_path: Path) -> None:
    path = tmp_path / "kvstream.toml"
    path.write_text("# mine\ntimeout = 0\n")
    served = serve(config_file=ConfigFile(path, OPTIONS))
    with served.asker() as asker:
        assert asker.ask("CONFIG REWRITE") == b"OK"
        assert path.read_text() == "# mine\ntimeout = 0\n"
        asker.ask("CONFIG SET timeout 9 stream-node-max-bytes 1kb hash-max-ziplist-value 7")
        asker.ask("CONFIG SET timeout x")
        assert asker.ask("CONFIG REWRITE") == b"OK"
        assert path.read_text() == (
            '# mine\ntimeout = 9\n\n[config]\nhash-max-ziplist-value = "7"\n'
            'stream-node-max-bytes = "1024"\n'
        )
        assert str(path).encode() in asker.ask("INFO server")
        path.unlink()
        assert asker.ask("CONFIG REWRITE").startswith("ERR Rewriting config file: No such file")


def test_without_a_file_there_is_nothing_to_rewrite(served: Served) -> None:
    with served.asker() as asker:
        assert asker.ask("CONFIG REWRITE") == Failure(
            "ERR The server is running without a config file"
        )
