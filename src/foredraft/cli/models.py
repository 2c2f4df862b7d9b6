"""``foredraft models``: which models are known by name, downloading one, and where it lies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from foredraft.catalogue import CATALOGUE, DEFAULT_TARGET, is_pulled, model_path, pulled_hub_files, resolve
from foredraft.gguf_types import printable
from foredraft.pull import Progress as PullProgress
from foredraft.pull import Report, pull

_STAGES = {"wait": "waiting for another pull", "download": "downloading", "check": "checking sha256"}


@click.group()
def models() -> None:
    """List, download and find models."""


@models.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def list_models(as_json: bool) -> None:
    """List the models known by name, and what was pulled from the hub."""
    rows = _rows()
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for title in ("NAME", "SIZE", "LICENCE", "PULLED", "NOTE"):
        table.add_column(title, justify="right" if title == "SIZE" else "left", no_wrap=title in ("SIZE", "NAME"))
    for row in rows:
        size = f"{int(str(row['size'])) / 1e6:,.0f} MB"
        table.add_row(str(row["name"]), size, str(row["licence"]), "yes" if row["pulled"] else "no", str(row["note"]))
    Console().print(table)


def _rows() -> list[dict[str, object]]:
    rows: list[dict[str, object]] = []
    for model in CATALOGUE.values():
        pulled = is_pulled(model.name)
        rows.append(
            {
                "name": model.name,
                "size": model.size,
                "download": model.download_bytes,
                "licence": model.licence,
                "pulled": pulled,
                "path": str(model_path(model.name)) if pulled else None,
                "default": model.name == DEFAULT_TARGET,
                "note": model.note,
            }
        )
    for name, path in pulled_hub_files():
        size = path.stat().st_size
        rows.append(
            {
                "name": name,
                "size": size,
                "download": size,
                "licence": "see the hub",
                "pulled": True,
                "path": str(path),
                "default": False,
                "note": "from the hub",
            }
        )
    return rows


@models.command("pull")
@click.argument("name", metavar="NAME|OWNER/REPO[:FILE]")
def pull_model(name: str) -> None:
    """Download a model into the cache and print its path.

    NAME is one of `foredraft models list`. OWNER/REPO[:FILE] is a .gguf file on the Hugging Face hub; FILE
    may be the end of its name, such as q4_k_m. An interrupted download goes on where it stopped.
    """
    click.echo(pull_with_bar(name))


def pull_with_bar(name: str) -> Path:
    """Download with a progress bar on standard error; the path of the file."""
    with _progress_bar(printable(name, 40)) as report:
        return pull(name, report)


def find_or_pull(spec: str) -> Path:
    """The file behind a path or a name; a model of the catalogue that is not there yet is downloaded first."""
    if spec in CATALOGUE and not Path(spec).exists() and not is_pulled(spec):
        return pull_with_bar(spec)
    return resolve(spec)


@contextmanager
def _progress_bar(name: str) -> Iterator[Report]:
    """A bar on standard error with bytes, speed and time left; one line for each stage."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {stage: bar.add_task(f"{text} {name}", visible=False) for stage, text in _STAGES.items()}

        def report(progress: PullProgress) -> None:
            total = progress.total or None
            bar.update(tasks[progress.stage], completed=progress.done, total=total, visible=True)

        yield report


@models.command("path")
@click.argument("name")
def model_file(name: str) -> None:
    """Print where the model NAME lies in the cache."""
    click.echo(resolve(name))
