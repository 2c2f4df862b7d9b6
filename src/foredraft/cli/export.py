"""``foredraft export``: programs that phones run."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from foredraft.cli.models import find_or_pull
from foredraft.engines.executorch_program import captured_stderr
from foredraft.errors import InvalidValue, MissingExtra
from foredraft.hf_tokenizer import HfTokenizer

if TYPE_CHECKING:
    from foredraft.export.executorch import ExportConfig, Report

WEIGHTS = ("int4", "int8", "float32")


@click.group()
def export() -> None:
    """Turn a model into a program that phones run."""


@export.command()
@click.argument("model")
@click.option("-o", "--output", required=True, metavar="DIR", help="The directory to write; it must not exist.")
@click.option("--ctx", default=0, metavar="N", help="Slots a session may have. [default: the model's, at most 4096]")
@click.option("--width", default=64, show_default=True, metavar="N", help="Most tokens a pass.")
@click.option("--weights", default="int4", show_default=True, type=click.Choice(WEIGHTS), help="Inner matrices.")
@click.option(
    "--output-matrix",
    default="int4",
    show_default=True,
    type=click.Choice(WEIGHTS),
    help="Output matrix of the target.",
)
@click.option("--embedding-bits", default="4", show_default=True, type=click.Choice(["4", "8"]), help="Embedding.")
@click.option("--group", default=32, show_default=True, metavar="N", help="Weights that share a scale (4 bits).")
@click.option("--hidden", "taps", multiple=True, type=int, metavar="LAYER", help="Also return this layer's states.")
@click.option("--output-rows", metavar="N|FILE", help="For a draft: keep only its N most useful output rows.")
@click.option("--output-text", metavar="FILE", help="Text whose tokens say which rows are useful.")
@click.option("--head", metavar="DIR", help="Put a draft head in, trained with `foredraft tune head`.")
@click.option(
    "--head-weights", default="int4", show_default=True, type=click.Choice(WEIGHTS), help="Matrices of the draft head."
)
@click.option("--no-exact", is_flag=True, help="Write a program even if its bits depend on how tokens are fed.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing but errors.")
def executorch(model: str, output: str, quiet: bool, **values: Any) -> None:
    """Export MODEL (a GGUF file, a Hugging Face directory or a known name) for ExecuTorch.

    The directory gets model.pte, tokenizer.json, the chat template and manifest.json. The program takes chains and
    trees, and its logits do not depend on how tokens are fed, to the last bit: the export checks that.
    """
    maker = _maker()
    console = Console(stderr=True, quiet=quiet, highlight=False)
    config = maker.ExportConfig(
        context=values["ctx"],
        width=values["width"],
        weights=values["weights"],
        head=values["output_matrix"],
        embedding_bits=int(values["embedding_bits"]),
        group=values["group"],
        taps=tuple(sorted(set(values["taps"]))),
        exact=not values["no_exact"],
        draft_head=None if values["head"] is None else Path(values["head"]),
        draft_weights=values["head_weights"],
    )
    source, config, needs = maker.plan(find_or_pull(model), config)
    config = _with_rows(source, config, values, console)
    target = Path(output)
    console.print(
        f"{source.name}: {needs.parameters / 1e6:.0f} million parameters; this takes about "
        f"{needs.memory / 1e9:.1f} GB of memory at its peak and {needs.disk / 1e9:.2f} GB of disk"
    )
    started = time.monotonic()
    with console.status("starting") as status:

        def progress(stage: str) -> None:
            status.update(f"{stage} …")
            console.print(f"[dim]{time.monotonic() - started:5.0f} s[/dim]  {stage}")

        report = maker.export_executorch(source, config, target, progress)
    _show(console, report)


def _maker() -> Any:
    try:
        with captured_stderr():  # torchao and torch speak about themselves
            from foredraft.export import executorch as maker
    except ImportError as error:
        raise MissingExtra(
            f"exporting needs the package {error.name}; install it with: pip install 'foredraft[export]'"
        ) from error
    return maker


def _with_rows(source: Any, config: ExportConfig, values: dict[str, Any], console: Console) -> ExportConfig:
    """``config`` with the output rows that were asked for; says how much of the text they cover."""
    from foredraft.export.output_rows import resolve_rows

    if values["output_rows"] is None:
        if values["output_text"] is not None:
            raise InvalidValue("--output-text", values["output_text"], "only together with --output-rows N")
        return config
    converted = source.tokenizer()
    text = None if values["output_text"] is None else Path(values["output_text"])
    chosen = resolve_rows(values["output_rows"], HfTokenizer(converted.tokenizer, converted.facts), text)
    for words, share in (("of the text", chosen.coverage), ("of text not counted, estimated", chosen.held_out)):
        if share is not None:
            console.print(f"{len(chosen.ids)} output rows cover {share:.1%} {words}")
    return replace(config, rows=chosen.ids)


def _show(console: Console, report: Report) -> None:
    manifest, evidence = report.manifest, report.evidence
    size, before = manifest.program.bytes, manifest.source.bytes
    console.print(f"[bold]{report.directory}[/bold]: {size / 1e6:.0f} MB, {size / before:.2f} × the source")
    if evidence.exact:
        console.print(f"bits: {evidence.rows} rows of logits, fed in {evidence.ways} ways, identical to one at a time")
    else:
        console.print(f"bits: NOT identical ({evidence.difference}); speculation may change the text")
    quality = manifest.quality
    parts = [f"mean KL to the source {quality['mean_kl']:.4f} nats", f"same best token {quality['same_top']:.1%}"]
    if "perplexity" in quality:
        parts.append(f"perplexity {quality['perplexity']:.2f} (source {quality['perplexity_source']:.2f})")
    else:
        parts.append(f"kept rows hold {quality['kept_mass']:.1%} of the probability")
    console.print("; ".join(parts))
    console.print(f"lowered program vs its torch module: {quality['round_trip_relative']:.1e} of the logits' spread")
