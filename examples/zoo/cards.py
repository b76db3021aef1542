"""The cards of the models and the tables of the README, written from the results of `check.py`."""

from pathlib import Path
from typing import Any

import plan

TABLE_BEGIN = "<!-- tables: written by check.py -->"
TABLE_END = "<!-- end of tables -->"

DATA = {
    "code": "Python's standard library",
    "prose": "English documentation: docstrings, `pydoc` topics, manual pages, licenses, package notes",
}


def write_all(figures: dict[str, Any], folder: Path) -> None:
    """Write a card for each model into `cards/`, and the tables between their marks in the README."""
    by_card: dict[str, list[tuple[plan.Shipped, dict[str, Any]]]] = {}
    for shipped, model_figures in zip(plan.SHIPPED, figures["models"], strict=True):
        by_card.setdefault(shipped.card, []).append((shipped, model_figures))
    (folder / "cards").mkdir(exist_ok=True)
    for card, files in by_card.items():
        (folder / "cards" / f"{card}.md").write_text(_card(files))
    readme = folder / "README.md"
    before, _, rest = readme.read_text().partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    readme.write_text(f"{before}{TABLE_BEGIN}\n{tables(figures)}\n{TABLE_END}{after}")


def tables(figures: dict[str, Any]) -> str:
    """Return the table of the models and the table of the grafts, in Markdown."""
    lines = [
        "| file | bytes | feed-forward tensors against A | perplexity on code / prose | of the samples in llama.cpp |",
        "|---|---:|---:|---:|---:|",
    ]
    for model_figures in figures["models"]:
        alike = f"{model_figures['correlation']['mean']:.3f}" if "correlation" in model_figures else "-"
        runtime = _pair(model_figures["runtime"]["perplexity"])
        card = f"[{model_figures['file']}](cards/{model_figures['card']}.md)"
        lines.append(
            f"| {card} | {model_figures['size_bytes']:,} | {alike} | {_pair(model_figures['perplexity'])} | {runtime} |"
        )
    total_bytes = sum(model_figures["size_bytes"] for model_figures in figures["models"])
    lines += [f"| together | {total_bytes:,} | | | |", ""]
    lines += ["| base | feed-forward tensors of | blocks | perplexity on code / prose |", "|---|---|---|---:|"]
    for graft in figures["grafts"]:
        blocks = "all" if len(graft["blocks"]) == plan.BASE_SHAPE.blocks else ", ".join(map(str, graft["blocks"]))
        donor = graft["donor"] or "none: zeroed"
        lines.append(f"| {graft['base']} | {donor} | {blocks} | {_pair(graft['perplexity'])} |")
    return "\n".join(lines)


def _pair(perplexity: dict[str, float]) -> str:
    return f"{_rounded(perplexity['code'])} / {_rounded(perplexity['prose'])}"


def _rounded(value: float) -> str:
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def _card(files: list[tuple[plan.Shipped, dict[str, Any]]]) -> str:
    shipped, found = files[0]
    run = plan.run_named(shipped.run)
    heading = f"# {shipped.title} {shipped.version}"
    stored = "\n".join(f"- `{file.file_name}`: {facts['size_bytes']:,} bytes, {file.encoding}" for file, facts in files)
    facts = [
        ("Parents", _parents(shipped)),
        ("Architecture", _architecture(run)),
        ("Data", _data(run)),
        ("Training", _training(shipped, run, found)),
        ("Seed", str(run.seed)),
        ("Perplexity", _perplexities(files)),
    ]
    if "correlation" in found and shipped.card != "a":
        alike = found["correlation"]
        range_text = f"the mean of twelve tensors, from {alike['least']:.3f} to {alike['most']:.3f}"
        facts.append(("Correlation with A", f"{alike['mean']:.3f} over the feed-forward tensors ({range_text})"))
    facts.append(("License", "Apache-2.0"))
    table = "\n".join(f"| {key} | {value} |" for key, value in facts)
    written = "\n\n".join(f"```text\n{_sample(found, kind)}\n```" for kind in ("code", "prose"))
    return f"""{heading}

{shipped.description} It is an example for dissecting and grafting. It has no knowledge; do not ask it questions.

{stored}

| | |
|---|---|
{table}

This command makes it. It trains the parents first:

```shell
python examples/zoo/train.py --only {run.name}
```

The text that it writes in llama.cpp after `def read_lines(path):` and after `The file is opened for reading, and`,
always with the most likely token:

{written}
"""


def _sample(found: dict[str, Any], kind: str) -> str:
    return "\n".join(line.rstrip() for line in str(found["runtime"]["written"][kind]).rstrip().split("\n"))


def _parents(shipped: plan.Shipped) -> str:
    if shipped.parent:
        title, version = shipped.parent
        same = shipped.title == title and shipped.version == version
        return "none" if same else f"{title} {version}"
    return "none"


def _architecture(run: plan.Run) -> str:
    shape = run.shape
    ends = "tied embeddings" if shape.tied else "an output matrix of its own"
    adapter = f"; LoRA of rank {run.adapter.rank}, alpha {run.adapter.alpha:g}, on all matrices" if run.adapter else ""
    return (
        f"Llama: width {shape.width}, {shape.blocks} blocks, {shape.heads} heads, {shape.kv_heads} key-value heads, "
        f"feed-forward {shape.feed_forward}, {shape.vocabulary} tokens (byte-level BPE), "
        f"context {shape.context}, {ends}{adapter}"
    )


def _data(run: plan.Run) -> str:
    shares = {"code": run.code_share, "prose": 1 - run.code_share}
    code_rows = round(shares["code"] * plan.BATCH)
    rows = {"code": code_rows, "prose": plan.BATCH - code_rows}
    return "; ".join(f"{DATA[kind]} ({rows[kind]} of {plan.BATCH} rows)" for kind in rows if rows[kind])


def _training(shipped: plan.Shipped, run: plan.Run, found: dict[str, Any]) -> str:
    first = run.parent_step if run.resume else 0
    tokens = (shipped.step - first) * plan.BATCH * plan.CONTEXT
    share = (shipped.step - first) / (run.steps - first)
    steps = f"steps {first} to {shipped.step} of {run.steps}" if run.resume else f"{shipped.step} of {run.steps} steps"
    return (
        f"{steps} of {plan.BATCH} rows of {plan.CONTEXT} tokens ({tokens:,} tokens), AdamW, "
        f"peak rate {run.peak_rate:g}, {found['cpu_seconds'] * share:.0f} CPU seconds"
    )


def _perplexities(files: list[tuple[plan.Shipped, dict[str, Any]]]) -> str:
    parts = []
    for shipped, found in files:
        held_out, samples = _pair(found["perplexity"]), _pair(found["runtime"]["perplexity"])
        parts.append(f"{shipped.encoding}: {held_out} (held-out code / prose), {samples} (samples)")
    return "; ".join(parts)
