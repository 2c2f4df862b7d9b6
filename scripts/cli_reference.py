"""Writes docs/reference/cli.md from the command line's own --help texts; ``--check`` fails if it is stale.

The pages are rendered at a fixed width, without colour, so that they are the same in every terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from foredraft.cli.main import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100
HEAD = """# Command line

<!-- Written by scripts/cli_reference.py from the --help texts; edit those. -->
"""


def contexts(command: click.Command, name: str, parent: click.Context | None) -> Iterator[click.Context]:
    """The command's own context, then those of its visible subcommands, depth first."""
    context = click.Context(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH, color=False
    )
    yield context
    if isinstance(command, click.Group):
        for child_name in command.list_commands(context):
            child = command.get_command(context, child_name)
            if child is not None and not child.hidden:
                yield from contexts(child, child_name, context)


def section(context: click.Context) -> str:
    """One command's heading and help text."""
    text = click.unstyle(context.get_help())
    body = "\n".join(line.rstrip() for line in text.splitlines())
    return f"\n## {context.command_path}\n\n```text\n{body}\n```\n"


def render() -> str:
    """The whole page."""
    return HEAD + "".join(section(context) for context in contexts(cli, "foredraft", None))


def main(arguments: list[str]) -> int:
    """Exit status: 0 written or up to date, 1 stale, 2 an unknown option."""
    if arguments not in ([], ["--check"]):
        print(f"unknown arguments {arguments}; there is: --check", file=sys.stderr)
        return 2
    text = render()
    if not arguments:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE}", file=sys.stderr)
        return 0
    if PAGE.is_file() and PAGE.read_text(encoding="utf-8") == text:
        return 0
    print(f"{PAGE} is stale: run scripts/docs and commit the change", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
