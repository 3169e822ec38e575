"""Profiles: places with names, in a TOML file of the user.

``--profile`` chooses one. It has values of global options::

    [profiles.prod]
    url = "rediss://app:secret@db.example.com:6390"
    wait = "10s"

They replace the defaults and the environment; options of the command line replace them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from kvstream.errors import InvalidArgument, nearest
from kvstream.types.user_folders import expand, user_folder

PROFILES = "profiles"
PLACES = ("store", "url")
PROFILE_KEYS = (*PLACES, "db", "wait", "durability")
"""The options that a profile may have."""
_READ_BY_OTHERS = 0o077


def config_path() -> Path:
    """Return the path of the configuration file; InvalidArgument if the user has no home."""
    return user_file("KVSTREAM_CONFIG", "XDG_CONFIG_HOME", ".config", "config.toml")


def user_file(variable: str, xdg: str, folder: str, name: str) -> Path:
    """Return the path in ``variable``, by default ``name`` in the user's folder.

    InvalidArgument if the user has no home folder.
    """
    if given := os.environ.get(variable):
        return expand(given)
    return user_folder(xdg, folder, f"name the file in {variable}") / name


def profile_names() -> list[str]:
    """Return the names of the profiles; none if the file cannot be read."""
    try:
        return list(_profiles(config_path()))
    except (click.ClickException, InvalidArgument):
        return []


def apply_profile(ctx: click.Context) -> None:
    """Set the global options of ``ctx`` from its profile; UsageError if that is not possible.

    A place on the command line replaces a profile of the environment, and the other way round.
    """
    name = ctx.params.get("profile")
    if name is None:
        return
    sources = {each: ctx.get_parameter_source(each) for each in PLACES if ctx.params[each]}
    own = ctx.get_parameter_source("profile")
    same = [each for each, source in sources.items() if source is own]
    if same:
        other = f"--{same[0]} (KVSTREAM_{same[0].upper()})"
        raise click.UsageError(f"give either --profile (KVSTREAM_PROFILE) or {other}")
    if own is ParameterSource.ENVIRONMENT and ParameterSource.COMMANDLINE in sources.values():
        return
    path = config_path()
    profiles = _profiles(path)
    if name not in profiles:
        raise click.UsageError(f"{path} has no profile {name!r}{nearest(name, profiles)}")
    options = {option.name: option for option in ctx.command.params}
    key = ""
    try:
        values = _check_profile(profiles[name], path)
        ctx.params |= dict.fromkeys(PLACES)
        for key, value in values.items():
            if ctx.get_parameter_source(key) is not ParameterSource.COMMANDLINE:
                ctx.params[key] = options[key].type_cast_value(ctx, value)
    except click.BadParameter as error:
        raise click.UsageError(f"{path}, profile {name!r}: {key}: {error.message}") from None
    except ValueError as error:
        raise click.UsageError(f"{path}, profile {name!r}: {error}") from None


def _profiles(path: Path) -> dict[str, Any]:
    """Return the profiles of a file by name."""
    import tomllib  # most runs name no profile

    try:
        found = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise click.UsageError(
            f"there is no file {path}: make it, "
            f"with a table [{PROFILES}.NAME] that has url or store"
        ) from None
    except OSError as error:
        raise click.UsageError(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise click.UsageError(f"{path}: {error}") from None
    if unknown := sorted(set(found) - {PROFILES}):
        hint = nearest(unknown[0], [PROFILES])
        raise click.UsageError(f"{path}: unknown table {unknown[0]!r}{hint}")
    profiles = found.get(PROFILES, {})
    if not isinstance(profiles, dict):
        raise click.UsageError(f"{path}: {PROFILES} must be a table of tables")
    return profiles


def _check_profile(profile: object, path: Path) -> Mapping[str, Any]:
    """Return the options of a profile; ValueError if they are wrong."""
    if not isinstance(profile, dict):
        raise ValueError("it must be a table")
    if unknown := sorted(set(profile) - set(PROFILE_KEYS)):
        raise ValueError(f"unknown option {unknown[0]!r}{nearest(unknown[0], PROFILE_KEYS)}")
    if len(places := [key for key in PLACES if key in profile]) != 1:
        raise ValueError("it needs either store or url" + (", not both" if places else ""))
    place = profile[places[0]]
    if not isinstance(place, str):
        raise ValueError(f"{places[0]} must be text")
    if places == ["store"]:
        return {**profile, "store": path.parent / expand(place)}
    if "durability" in profile:
        raise ValueError("durability is for a store: a server's was chosen when it started")
    if _has_password(place) and path.stat().st_mode & _READ_BY_OTHERS:
        raise ValueError(f"other users can read the password: run chmod 600 {path}")
    return profile


def _has_password(url: str) -> bool:
    from urllib.parse import urlsplit  # only for profiles of servers

    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.password is not None or "password=" in parts.query
