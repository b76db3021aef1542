"""`organ models` and `organ show`."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from organs.registry.catalog.queries.model_names import model_by_name
from organs.registry.catalog.records import Edits
from organs.registry.catalog.register.model_changes import edit_model
from organs.registry.digest import digest_of
from organs.registry.local import LocalRegistry
from organs.registry.names import parse_model_name
from tests.cli.in_process import OrganCommand
from tests.gguf_files import file_bytes, text
from tests.search.catalogs import random_models, write_models
from tests.small_models import block_metadata, block_tensors, small_model, weight_tensor

MODEL_FIELDS = {
    "name",
    "title",
    "kind",
    "architecture",
    "parameters",
    "tensors",
    "size_bytes",
    "mean_theta",
    "theta_caution",
    "mean_signal",
    "license",
    "complete",
    "digest",
    "created_at",
    *("state", "downloads", "grafts", "nonfinite_tensors", "likeness", "change", "gain"),
}


def test_the_output_for_an_empty_registry_names_the_first_step(organ: OrganCommand) -> None:
    ended = organ.done("models")
    assert (ended.out, ended.err) == ("", "No models yet. Try: organ ingest FILE.gguf\n")
    assert organ.done("models", "--json").values == {"items": [], "next": None, "notes": []}
    assert organ.done("models", "-q").out == ""


def test_models_are_a_table_for_people(filled: OrganCommand) -> None:
    ended = filled.done("models")
    header, row = ended.lines
    headings = "model kind architecture license parameters tensors size mean θ added downloads uses"
    assert header.split() == headings.split()
    assert row.split()[:4] == ["local/little@1", "model", "llama", "apache-2.0"]
    assert ended.err.startswith("1 model with 10 different organs, ")


def test_models_as_json_have_items_and_the_next_cursor(filled: OrganCommand) -> None:
    values = filled.done("models", "--json").values
    assert values.keys() == {"items", "next", "notes"}
    (item,) = values["items"]
    assert item.keys() == MODEL_FIELDS
    assert (item["name"], item["digest"]) == ("local/little@1", digest_of(small_model()))


def test_kin_of_a_model_are_listed_with_their_change_the_most_similar_first(composer: OrganCommand) -> None:
    header, *rows = composer.done("models", "kin:base").lines
    assert header.split()[:2] == ["change", "model"]
    assert [row.split()[1] for row in rows] == ["local/base@1", "local/tuned@1"]
    assert [float(row.split()[0]) for row in rows] == pytest.approx([0, 0.01], abs=0.01)
    (item,) = composer.done("models", "kin:base likeness<1", "--json").values["items"]
    assert (item["name"], item["likeness"] > 0.98) == ("local/tuned@1", True)
    assert "change" not in composer.done("models").lines[0]
    assert "likeness needs a base: add kin:MODEL" in composer("models", "sort:-likeness").err


def test_models_are_listed_newest_first_or_by_theta_on_request(filled: OrganCommand, tmp_path: Path) -> None:
    for name, data in {
        "peaked": file_bytes([], [(weight_tensor("blk.0.a", (4096,))[0], bytes(8000) + b"\0\x3c" * 96)]),
        "partial": file_bytes([text("general.architecture", "llama")], block_tensors(1)[:1]),
        "words": file_bytes([text("general.name", "Words")]),
        "small": file_bytes([], [weight_tensor("blk.0.a", (64, 8))]),
    }.items():
        (tmp_path / f"{name}.gguf").write_bytes(data)
        filled.done("ingest", tmp_path / f"{name}.gguf")
    names = filled.done("models", "-q").lines
    assert names == ["local/small@1", "local/words@1", "local/partial@1", "local/peaked@1", "local/little@1"]
    ranked = filled.done("models", "--rank", "--json").values["items"]
    thetas = [item["mean_theta"] for item in ranked]
    assert thetas == sorted(thetas, reverse=True)
    assert "local/words@1" not in [item["name"] for item in ranked]
    assert {item["name"]: item["theta_caution"] for item in ranked}["local/small@1"] == "most"
    listed = filled.done("models")
    assert [row.split()[0] for row in listed.lines if "≈" in row] == ["local/small@1"]
    assert listed.err.startswith("≈ marks an uncertain θ")


def test_a_partial_model_is_marked_as_partial(organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "part.gguf").write_bytes(file_bytes(block_metadata(blocks=7), block_tensors(2)))
    organ.done("ingest", tmp_path / "part.gguf")
    assert organ.done("models").lines[1].split()[1] == "partial"
    assert organ.done("show", "part").lines[1].startswith("partial model  llama, ")


def test_a_model_is_shown_with_its_types_and_its_tensors(filled: OrganCommand) -> None:
    summary = filled.done("show", "little").out
    assert summary.startswith("local/little@1  Little\nmodel    llama, 47.3 k parameters in 10 tensors, ")
    assert len(summary.splitlines()) <= 20
    assert "organ show little --tensors  # 10 tensors\n" in summary
    assert "blk." not in summary
    out = filled.done("show", "little", "--tensors").out
    assert out.startswith(summary)
    for expected in ("skeleton", "blk.1.ffn_down.weight", "128×64", "F16", "output_norm.weight"):
        assert expected in out


def test_a_model_is_shown_with_its_license_its_vocabulary_and_its_file(filled: OrganCommand) -> None:
    lines = [line.split() for line in filled.done("show", "little").lines]
    assert ["license", "apache-2.0"] in lines
    (file,) = [line for line in lines if line[:1] == ["file"]]
    assert file[1:2] + file[-1:] == ["little.gguf,", f"sha256:{digest_of(small_model())[:12]}"]


def test_a_model_as_json_has_everything(filled: OrganCommand) -> None:
    values = filled.done("show", "local/little@1", "--json").values
    assert values.keys() >= MODEL_FIELDS | {"types", "files", "metadata", "organs", "ingest", "flags"}
    assert values["ingest"]["organs"] == len(values["organs"]) == 10
    assert set(values["ingest"]) == {"model", "digest", "organs", "size_bytes", "flags", "notes"}


def test_an_organ_is_found_by_the_beginning_of_its_digest(filled: OrganCommand) -> None:
    _, data = weight_tensor("blk.0.attn_q.weight", (64, 64))
    digest = digest_of(data)
    for typed in (digest, digest[:8], f"sha256:{digest}", digest[:12].upper()):
        out = filled.done("show", typed).out
        assert out.startswith(
            "blk.0.attn_q.weight of local/little@1, an attention tensor (type:skeleton)\n"
            f"sha256:{digest}\ncontent   F16 64x64, 4096 values, 8.2 kB, present\nstored    "
        )
        assert f"organ search like:{digest[:12]} " in out
    out = filled.done("show", digest, "--measures").out
    for expected in (
        "method z1, the Z-measure: ",
        "θ in degrees: 0 uniform, about 34 Gaussian, 90 heavy tails",
        "method mp1, the spectral measures: ",
        "docs/numbers.md explains",
    ):
        assert expected in out
    values = filled.done("show", digest[:8], "--json").values
    assert values["digest"] == digest
    assert {reading["method"] for reading in values["measurements"]} == {"z1", "mp1"}
    assert [place["name"] for place in values["places"]] == ["blk.0.attn_q.weight"]


def test_a_description_keeps_its_lines_and_versions_show_the_number_of_different_organs(
    filled: OrganCommand, registry: LocalRegistry, tmp_path: Path
) -> None:
    changed = file_bytes(block_metadata(), [*block_tensors(seed=2)[:-1], block_tensors(seed=1)[-1]])
    for data in (file_bytes(block_metadata(), block_tensors(seed=2)), changed):
        (tmp_path / "twice.gguf").write_bytes(data)
        filled.done("ingest", "--new-version", tmp_path / "twice.gguf")
    with registry.catalog.writing() as session:
        model = model_by_name(session, parse_model_name("local/twice"))
        edit_model(session, model, Edits(description="# What\n\n\tlicense  mit\x1b[2J"), "local")
    out = filled.done("show", "twice").out
    assert "\n  # What\n\n      license  mit\\u001b[2J\nmodel    llama, " in out
    newest, first = (filled.done("show", f"twice@{version}").out for version in (2, 1))
    assert "also local/twice@1" in newest
    assert ", 1 organ differs from the version before\n" in first


def test_a_name_that_looks_like_a_digest_is_a_name_first(organ: OrganCommand, tmp_path: Path) -> None:
    (tmp_path / "deadbeef.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / "deadbeef.gguf")
    assert organ.done("show", "deadbeef").out.startswith("local/deadbeef@1")
    ended = organ("show", "sha256:deadbeef")
    assert ended.status == 3
    assert "no organ's digest begins with deadbeef" in ended.err


def test_a_table_is_not_folded_when_it_is_piped(organ: OrganCommand, tmp_path: Path) -> None:
    name = "n" * 90
    (tmp_path / f"{name}.gguf").write_bytes(small_model())
    organ.done("ingest", tmp_path / f"{name}.gguf")
    header, row = organ.done("models").lines
    assert f"local/{name}@1" in row
    assert len(row) < 200
    assert header.startswith("model ")


def test_models_are_found_by_a_query(registry: LocalRegistry, organ: OrganCommand) -> None:
    write_models(registry, random_models(40, seed=2))
    everything = organ.done("models", "-q").lines
    adapters = organ.done("models", "kind:adapter", "-q").lines
    others = organ.done("models", "-kind:adapter", "-q").lines
    assert sorted([*adapters, *others]) == sorted(everything)
    assert 0 < len(adapters) < len(everything)
    assert organ.done("models", "-q", "nothing-like-it").lines == []
    sizes = [item["parameters"] for item in organ.done("models", "sort:-params", "--json").values["items"]]
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    "words", [[], ["--rank"], ["-kind:adapter sort:-params"], ["-coder", "--rank"], ["sort:theta"]]
)
def test_the_hint_after_a_page_of_models_is_the_command_for_the_next_page(
    words: list[str], registry: LocalRegistry, organ: OrganCommand
) -> None:
    write_models(registry, random_models(60, seed=2))
    seen: list[str] = []
    command = ["models", *words, "--limit", "4", "-q"]
    while True:
        ended = organ.done(*command)
        seen += ended.lines
        if not ended.err:
            break
        first, *command = [*shlex.split(ended.err.removeprefix("more: ").strip()), "-q"]
        assert first == "organ"
    assert seen == organ.done("models", *words, "--limit", 1000, "-q").lines
    assert len(seen) > 4


def test_an_unknown_model_name_in_a_query_is_noted(filled: OrganCommand) -> None:
    ended = filled.done("models", "arch:lama")
    assert ended.err.startswith("note: nothing in this registry has arch:lama; the nearest is arch:llama\n")
    assert filled.done("models", "arch:lama", "--json").values["notes"] != []


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["slot:ffn_up"], "organ: 'slot:ffn_up': slot is a field of organs; models have"),
        (["sort:rank"], "organ: 'sort:rank': models can be sorted by new, theta, signal, params, tensors, size"),
        (["--after", "x"], "organ: 'after': this is not a cursor"),
    ],
)
def test_an_invalid_query_of_models_gives_an_error_of_one_line(
    words: list[str], sentence: str, organ: OrganCommand
) -> None:
    ended = organ("models", *words)
    assert ended.status == 1
    assert ended.err.startswith(sentence)


def test_an_empty_list_of_models_says_what_to_do_next(filled: OrganCommand) -> None:
    assert "To find donors for a model: organ compat BASE" in filled.done("models", "kind:chimera").err
    assert "organ models --help lists the fields" in filled.done("models", "kind:adapter").err
    assert "leave out --after to begin with the first page" in filled("models", "--after", "x").err
