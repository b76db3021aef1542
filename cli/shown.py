"""How `organ show` prints a model and an organ: every number of an organ with what it is."""

from __future__ import annotations

import click

from organs.cli.console import plain, print_table
from organs.cli.prose import print_prose, print_sentence
from organs.cli.tables import NONFINITE_MARK
from organs.registry.present.text import count_text, share_text, size_text, theta_text
from organs.registry.present.values import Values

FILES_SHOWN = 4
EDGES_SHOWN = 12
PARTIAL_MODEL = "partial model"
FACTS_SHOWN = ("licence", "context length", "vocabulary", "tokenizer")
_NUMBERS = ("tensors", "size", "θ", "|Z|", "spectral", "value")

_METHODS = {
    "z1": "the Z-measure: what the distribution of the weights looks like",
    "mp1": "the spectral reading: how far the matrix is from a random one",
}
_MEANINGS = {
    "sample_size": "values that were looked at",
    "theta": "θ in degrees: 0 noise, 90 signal; a bell curve has about 34",
    "magnitude": "|Z|: bits that each doubling of the resolution adds, near 1 for continuous weights",
    "signal": "sin θ",
    "entropy": "how evenly the values fill their range; noise has 0.95 and more",
    "kurtosis": "what sits in the tails beyond a bell curve; noise is within ±1.2",
    "coherence": "how unevenly the sorted values are spaced; noise has 0.5 and less",
    "mean": "of the values that were looked at, as are the next three",
    "nan_count": "values that are no number",
    "infinite_count": "values beyond all numbers",
    "constant": "whether all values are one",
    "spectral_signal": "share of the energy that stands above chance: 0 in a random matrix",
    "stable_rank": "the whole energy over the largest eigenvalue: 1 where one direction is everything",
}


def print_model(values: Values) -> None:
    """A model page: what it is, its types, its lineage, and a line an organ."""
    click.echo(f"{values['name']}  {plain(values['title'] or '')}".rstrip())
    if values["description"]:
        print_prose(values["description"])
    size = size_text(values["size_bytes"])
    content = f"{count_text(values['parameters'])} parameters in {values['tensors']} tensors, {size}"
    kind = values["kind"] if values["complete"] else PARTIAL_MODEL
    click.echo(f"{kind}, {plain(values['architecture'] or 'no architecture')}, {content}")
    for note in (*values["flags"], *values["unassemblable"]):
        print_sentence(f"note: {note}")
    _print_facts(values)
    _print_state(values)
    click.echo()
    rows = [
        (
            kind["type"],
            kind["tensors"],
            size_text(kind["size_bytes"]),
            theta_text(kind["mean_theta"]),
            share_text(kind["mean_spectral_signal"]),
        )
        for kind in values["types"]
    ]
    print_table(("type", "tensors", "size", "θ", "spectral"), rows, _NUMBERS)
    print_lineage(values)
    click.echo()
    organs = [_placement_row(placement) for placement in values["placements"]]
    print_table(("tensor", "type", "dtype", "shape", "θ", "|Z|", "spectral", "organ"), organs, _NUMBERS)


def _print_state(values: Values) -> None:
    """What became of it since it was published: its state, its use, and the other versions of its name."""
    if values["state"] != "visible":
        print_sentence(f"{values['state']} on {(values['changed_at'] or '')[:10]}: {values['state_reason'] or ''}")
    click.echo(f"{values['downloads']} downloads, grafted into {values['grafts']} chimeras")
    others = [one for one in values["versions"] if one["name"] != values["name"]]
    for one in others:
        changes, state = one["changes"], "" if one["state"] == "visible" else f", {one['state']}: {one['state_reason']}"
        differ = f", {_differing(changes['changed'])} from the one before" if changes else ""
        print_sentence(f"also {one['name']}, {one['created_at'][:10]}{differ}{state}")
    if values["versions_left_out"]:
        click.echo(f"and {values['versions_left_out']} older versions")


def _differing(count: int) -> str:
    return "1 organ differs" if count == 1 else f"{count} organs differ"


def print_organ(values: Values) -> None:
    """An organ page: what it is, what was measured, and where it sits."""
    click.echo(f"sha256:{values['digest']}")
    gain = f"{size_text(values['size_bytes'])}, stored in {size_text(values['stored_bytes'])} by {values['codec']}"
    click.echo(f"{values['dtype']} {values['shape']}, {values['elements']} values, {gain}, {values['state']}")
    if values["nonfinite"] != 0:
        counted = "not counted yet" if values["nonfinite"] is None else f"{values['nonfinite']:,}"
        click.echo(f"values that are NaN or infinite: {counted}")
    for other in values["also"]:
        click.echo(f"the same bytes also stand as {other['dtype']} {other['shape']}")
    for reading in values["measurements"]:
        _print_reading(reading)
    if values["measurements"]:
        click.echo()
        print_sentence("What these numbers do not say is in the documentation, under 'What the numbers mean'.")
    click.echo()
    rows = [(place["model"], place["name"], place["type"]) for place in values["places"]]
    print_table(("model", "tensor", "type"), rows)


def _print_facts(values: Values) -> None:
    """The licence, what a user of the model asks first, and its files; all metadata is in the JSON."""
    facts = [(name, values["facts"][name]) for name in FACTS_SHOWN if name in values["facts"]]
    facts += [
        ("file", f"{file['name']}, {size_text(file['size_bytes'])}, sha256:{file['sha256'][:12]}")
        for file in values["files"][:FILES_SHOWN]
    ]
    for name, text in facts:
        click.echo(f"{name:14}  {plain(text)}")
    if len(values["files"]) > FILES_SHOWN:
        click.echo(f"… and {len(values['files']) - FILES_SHOWN} more files, with --json")


def _placement_row(placement: Values) -> tuple[object, ...]:
    return (
        f"{placement['name']} {NONFINITE_MARK}" if placement["nonfinite"] else placement["name"],
        placement["type"],
        placement["dtype"],
        placement["shape"],
        theta_text(placement["theta"]),
        share_text(placement["magnitude"]),
        share_text(placement["spectral_signal"]),
        placement["digest"][:12],
    )


def _print_reading(reading: Values) -> None:
    method = reading["method"]
    click.echo(f"\nmethod {method}, {_METHODS[method]}" if method in _METHODS else f"\nmethod {method}")
    rows = [
        (name.replace("_", " "), _reading_text(name, value), _MEANINGS.get(name, ""))
        for name, value in reading.items()
        if name not in ("method", "reason")
    ]
    print_table(("number", "value", "what it is"), rows, _NUMBERS)
    if "reason" in reading:
        print_sentence(f"not measured: {reading['reason']}")


def _reading_text(name: str, value: object) -> str:
    if name == "theta" and isinstance(value, float):
        return theta_text(value)
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def print_lineage(values: Values) -> None:
    """The lineage and the findings of a model page, if there are any."""
    edges = values["lineage"]
    if edges:
        click.echo()
        print_sentence(
            "Lineage. Alike is the mean correlation of the weights at the same places: 1 the same, 0 strangers. What "
            "was measured has no direction."
        )
        rows = [
            (edge["direction"], edge["model"] or edge["text"], edge["relation"], edge["evidence"], *_alike(edge))
            for edge in edges[:EDGES_SHOWN]
        ]
        print_table(("kin", "model", "relation", "evidence", "alike", "matrices"), rows, ("alike", "matrices"))
        left_out = len(edges) - EDGES_SHOWN + values["lineage_left_out"]
        if left_out > 0:
            click.echo(f"… and {left_out} more, with --json")
    for finding in values["findings"]:
        print_sentence(f"{finding['severity']}: {finding['sentence']}")


def _alike(edge: Values) -> tuple[str, str]:
    return share_text(edge["score"]), str(edge["compared"] or "–")
