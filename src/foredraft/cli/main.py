"""Entry point: the command group, and the one place where an error becomes one line and an exit code."""

from __future__ import annotations

import errno
import io
import os
import sys

import click

from foredraft import __version__
from foredraft.cli.bench import bench
from foredraft.cli.compare_profiles import compare_profiles
from foredraft.cli.doctor import doctor
from foredraft.cli.export import export
from foredraft.cli.generate import INTERRUPTED, generate
from foredraft.cli.models import models
from foredraft.cli.pair_check import pair_check
from foredraft.cli.plan import plan_command
from foredraft.cli.profile import profile
from foredraft.cli.tune import tune
from foredraft.cli.what_if import what_if
from foredraft.errors import ForedraftError
from foredraft.gguf_types import printable


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="foredraft")
def cli() -> None:
    """Exact speculative decoding for large language models on small machines."""


cli.add_command(bench)
cli.add_command(compare_profiles)
cli.add_command(doctor)
cli.add_command(export)
cli.add_command(generate)
cli.add_command(models)
cli.add_command(pair_check)
cli.add_command(plan_command)
cli.add_command(profile)
cli.add_command(tune)
cli.add_command(what_if)


def main() -> None:
    """Run the command line; exit code 0, 1 (runtime), 2 (usage) or 130 (interrupted)."""
    _prepare_streams()
    try:
        result = cli(standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except ForedraftError as error:
        sys.exit(_fail(str(error), error.exit_code))
    except (KeyboardInterrupt, click.Abort):
        sys.exit(_fail("interrupted", INTERRUPTED))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        sys.exit(_fail(_os_error(error), 1))
    except MemoryError:
        sys.exit(_fail("out of memory; try a smaller --ctx or a smaller model", 1))
    sys.exit(result if isinstance(result, int) else 0)


def _prepare_streams() -> None:
    """A closed standard stream acts like the null device. Standard output takes any text: what its encoding lacks
    becomes "?", file names that are not UTF-8 keep their bytes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  open as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="surrogateescape" if sys.stdout.encoding.lower() == "utf-8" else "replace")


def _os_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    fix = {
        errno.ENOSPC: "; free some space and try again",
        errno.EACCES: "; check the permissions, or set FOREDRAFT_CACHE to a folder you may write to",
        errno.EROFS: "; set FOREDRAFT_CACHE to a folder you may write to",
    }.get(error.errno or 0, "")
    return f"{where}{error.strerror or error}{fix}"


def _fail(message: str, code: int) -> int:
    """One line on standard error, whatever the message holds."""
    click.echo(f"foredraft: {printable(' '.join(message.split()), 1000)}", err=True)
    return code


if __name__ == "__main__":
    main()
