"""The command line: ``kvstream --store DIR COMMAND``."""

import click

__all__ = ["main"]


@click.group()
@click.version_option(package_name="kvstream")
def main() -> None:
    """Durable message streams in a directory."""
