"""`organ compose`, and chimeras in `organ show` and `organ assemble`."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import msgspec
import pytest

from organs.registry.catalog.queries.chimeras import chimeras_by_lock
from organs.registry.catalog.register.chimeras import add_verdict
from organs.registry.compose.lock import LOCK_MAX_BYTES
from organs.registry.digest import digest_of
from organs.registry.entities.base import encode
from organs.registry.entities.validation import RunReport, VerdictReport
from organs.registry.local import LocalRegistry
from tests.cli.in_process import OrganCommand
from tests.cli.parents import Parents
from tests.gains import text_verdict
from tests.small_models import row_counts, small_model


@pytest.fixture
def organ(composer: OrganCommand) -> OrganCommand:
    return composer


def test_a_recipe_gives_a_plan_a_file_and_a_registered_chimera(
    organ: OrganCommand, parents: Parents, out: Path
) -> None:
    planned = organ.done("compose", parents.graft(), "-o", out / "c.gguf", "--dry-run").out
    assert "2 of 10 tensors change" in planned
    assert "free there" in planned
    lines = organ.done(
        "compose", parents.graft(), "-o", out / "c.gguf", "--name", "acme/mixed", "--quick-look", 5
    ).lines
    assert lines[-1].startswith("quick look: It did not run: the model was refused: ")
    assert lines[0] == "local/base@1 with local/tuned@1; licenses: apache-2.0"
    assert any(line.startswith("info related-lineage: ") for line in lines)
    (up,) = [line.split() for line in lines if "ffn_up" in line]
    assert up[:5] == ["1", "ffn_up", "local/tuned@1", "grafted", "F16"]
    sha256 = digest_of((out / "c.gguf").read_bytes())
    assert any(line.startswith(f"  file  {out / 'c.gguf'}, ") and sha256 in line for line in lines)
    assert "acme/mixed@1: registered" in lines
    organ.done("assemble", "acme/mixed", "-o", out / "again.gguf")
    assert (out / "again.gguf").read_bytes() == (out / "c.gguf").read_bytes()


def test_a_warning_stops_compose_until_it_is_accepted_and_the_suggested_command_accepts_it(
    organ: OrganCommand, parents: Parents, out: Path
) -> None:
    arguments = ("compose", parents.graft("stranger"), "-o", out / "c.gguf")
    ended = organ(*arguments)
    assert ended.status == 5
    assert any(line.startswith("warn unrelated-lineage: ") for line in ended.lines)
    error, hint = ended.err.splitlines()
    assert error == "organ: not composed: first accept the warnings unrelated-lineage"
    assert hint == f"       try: organ {' '.join(map(str, arguments))} --accept unrelated-lineage"
    assert list(out.iterdir()) == []
    ended = organ.done(*hint.partition("try: organ ")[2].split())
    assert "warn unrelated-lineage (accepted): " in ended.out
    assert organ("compose", parents.graft("stranger"), "--accept", "other-scale").status == 5


def test_all_warnings_accepted_together_are_in_the_stored_recipe(
    organ: OrganCommand, parents: Parents, out: Path
) -> None:
    options = ("-y", "--write-recipe", out / "kept.yaml", "--name", "acme/odd", "-q")
    organ.done("compose", parents.graft("stranger"), *options, "--dry-run")  # the recipe is all that it writes
    assert "accept: [unrelated-lineage]\n" in (out / "kept.yaml").read_text()
    (out / "kept.yaml").unlink()
    assert organ.done("compose", parents.graft("stranger"), *options).lines == ["acme/odd@1"]
    text = (out / "kept.yaml").read_text()
    assert "accept: [unrelated-lineage]\n" in text
    assert "name: acme/odd\n" in text
    assert organ.done("compose", out / "kept.yaml", "-q").lines == ["acme/odd@1"]
    assert organ.done("show", "acme/odd", "--json").values["chimera"]["recipe"]["accept"] == ["unrelated-lineage"]


def test_without_an_output_a_recipe_from_stdin_is_only_registered(
    organ: OrganCommand, parents: Parents, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(tmp_path.glob("*"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(parents.graft().read_bytes())))
    assert organ.done("compose", "-", "-q").lines == ["local/Base-Chimera-v1.0-F16@1"]
    again = organ.done("compose", parents.graft())
    assert "local/Base-Chimera-v1.0-F16@1: already registered, with the same bytes" in again.lines
    assert sorted(tmp_path.glob("*")) == before


@pytest.mark.parametrize("form", [[], ["-q"], ["--json"]])
def test_a_refusal_prints_all_findings_and_ends_with_5(form: list[str], organ: OrganCommand, parents: Parents) -> None:
    text = "base: base\ngrafts:\n  - {from: nobody}\n  - {from: base}\n  - {from: tuned, blocks: 9}\n"
    ended = organ("compose", parents.recipe(text), *form)
    assert ended.status == 5
    findings = (ended.out + ended.err).splitlines()
    for code in ("unknown-donor", "own-donor", "no-such-block"):
        assert any(code in line for line in findings)
    assert ended.err.splitlines()[-1] == "organ: refused for 3 reasons; nothing was composed"
    if form == ["--json"]:
        assert (ended.values["can_be_made"], ended.values["plan"]["lock_id"]) == (False, None)
    if not form:
        assert [line.split()[0] for line in ended.lines] == ["refuse"] * 3, "no sizes and no table of what is not made"


def test_missing_models_have_a_hint_and_an_empty_registry_another(
    organ: OrganCommand, parents: Parents, tmp_path: Path
) -> None:
    recipe = parents.recipe("base: zz1\ngrafts: [{from: zz2}, {from: base}, {from: zz2, blocks: 0}]\n")
    error, hint = organ("compose", recipe).err.splitlines()
    assert [error.count(f"no model is registered as local/{name}") for name in ("zz1", "zz2")] == [1, 1]
    assert hint.strip() == "try: organ models"
    assert OrganCommand(tmp_path / "empty")("compose", recipe).err.splitlines()[1].strip() == (
        "nothing is registered yet; try: organ ingest FILE.gguf, or organ push FILE.gguf to a remote registry"
    )


@pytest.mark.long
def test_many_changed_organs_are_folded_by_blocks(organ: OrganCommand, parents: Parents, tmp_path: Path) -> None:
    for name, seed in (("deep", 0), ("other", 1)):
        (tmp_path / f"{name}.gguf").write_bytes(small_model(name, blocks=11, seed=seed))
        organ.done("ingest", tmp_path / f"{name}.gguf")
    many = "base: deep\ngrafts: [{from: other, blocks: 0-3}, {from: other, blocks: [4, 6-10]}]\n"
    purified = "purify: {method: fractal, blocks: 0-4, type: organ}\naccept: [unrelated-lineage]\n"
    lines = [line.split() for line in organ.done("compose", parents.recipe(many + purified)).lines]
    grafted = [line[:4] for line in lines if line[1:2] == ["organ"] and line[3:4] == ["local/other@1"]]
    assert grafted == [["0-4", "organ", "10", "local/other@1"], ["6-10", "organ", "10", "local/other@1"]]
    (computed,) = [line for line in lines if line[:3] == ["0-4", "organ", "10"] and "°" in line[-1]]
    assert all("°" in cell for cell in computed[3:])


def test_a_lock_reproduces_its_file_and_registers_nothing(
    organ: OrganCommand, parents: Parents, out: Path, kept: LocalRegistry
) -> None:
    recipe = parents.graft(more="purify: {method: fractal, slot: attn_q, blocks: 0}\n")
    made = organ.done("compose", recipe, "-o", out / "c.gguf", "--lock", out / "c.lock", "--json").values["made"]
    assert digest_of((out / "c.lock").read_bytes()) == made["lock_id"], "sha256sum of the lock is its id"
    before = row_counts(kept)
    ended = organ.done("compose", "--from-lock", out / "c.lock", "-o", out / "again.gguf")
    assert made["lock_id"] in ended.out
    assert (out / "again.gguf").read_bytes() == (out / "c.gguf").read_bytes()
    assert row_counts(kept) == before
    ended = organ.done("compose", "--from-lock", out / "c.lock", "-o", out / "none.gguf", "--dry-run")
    assert "nothing was written" in ended.out
    assert not (out / "none.gguf").exists()


@pytest.mark.long
def test_a_lock_with_missing_organs_lists_them_and_an_invalid_one_is_refused(
    organ: OrganCommand, parents: Parents, out: Path, tmp_path: Path
) -> None:
    organ.done("compose", parents.graft(), "--lock", out / "c.lock")
    command = ("compose", "--from-lock", out / "c.lock", "-o", out / "c.gguf")
    other = OrganCommand(tmp_path / "elsewhere")
    ended = other(*command)
    assert ended.status == 5
    assert "no model in this registry has the header" in ended.err
    other.done("ingest", parents.base)
    ended = other(*command)
    assert ("no model in this registry has the header" in ended.err, ended.err.count(" is missing")) == (False, 2)
    other.done("ingest", parents.tuned)
    other.done(*command)

    sound = json.loads((out / "c.lock").read_text())
    wider = [[name, dtype, [2 * shape[0], *shape[1:]], digest] for name, dtype, shape, digest in sound["tensors"]]
    many = [[f"a.{number}", "bool", True] for number in range(1 << 16)]
    for changes, status, said in (
        ({"set": many}, 1, "describes no valid file"),
        ({"set": [["general.alignment", "uint32", 64]]}, 1, "changes the alignment"),
        ({"tensors": wider}, 5, "is not F16 of the shape of"),
        ({"more": 1}, 1, "it is not a lock of this format"),
        ({"more": "x" * LOCK_MAX_BYTES}, 1, f"at most {LOCK_MAX_BYTES:,} are read"),
    ):
        (out / "bad.lock").write_text(json.dumps({**sound, **changes}, sort_keys=True, separators=(",", ":")))
        ended = organ("compose", "--from-lock", out / "bad.lock", "-o", out / "bad.gguf")
        assert (ended.status, ended.out, (out / "bad.gguf").exists()) == (status, "", False)
        assert said in ended.err


def test_a_chimera_is_shown_with_its_origin(organ: OrganCommand, parents: Parents) -> None:
    more = "purify: {method: spectral, keep: 0.8, slot: attn_q, blocks: 0}\n"
    made = organ.done("compose", parents.graft("stranger", more), "-y", "--json").values["made"]
    summary = organ.done("show", made["model"]).out
    for expected in (
        "\nbase local/base@1, change ",
        "\ndonor local/stranger@1",
        ", feed-forward (type organ), grafted",
        "\nverdict not run yet\n",
        "\nscreen Unrelated tensors (change ",
        f"organ validate {made['model'].removesuffix('@1').removeprefix('local/')}",
    ):
        assert expected in re.sub(" +", " ", summary)
    out = organ.done("show", made["model"], "--recipe").out
    assert out.startswith(summary)
    for expected in (
        f"A chimera, lock sha256:{made['lock_id']}",
        "from local/base@1, apache-2.0: purified",
        "from local/stranger@1, apache-2.0: grafted",
        "blk.0.attn_q.weight: purified (spectral, keeping 80% of the energy), from ",
        "  accept: [unrelated-lineage]",
        "warn unrelated-lineage (accepted): ",
        "\nscreen: Unrelated tensors (change ",
        "\nsize: ",
        "not run yet",
    ):
        assert expected in out
    assert organ.done("show", f"sha256:{made['lock_id'][:16]}", "--recipe").out == out, "by its lock"
    assert organ.done("show", f"sha256:{made['sha256']}").out == summary, "by its file"
    chimera = organ.done("show", made["model"], "--json").values["chimera"]
    (computed,) = chimera["computed"]
    assert (computed["method"], computed["keep"], computed["acts"]) == ("spectral", 0.8, ["purified"])
    assert "purified (spectral, keeping 80% of the energy), from " in organ.done("show", computed["digest"]).out


def validated(home: Path, lock_id: str) -> None:
    """Store a verdict on a chimera with a result on one kind of text, as `organ validate` does."""
    run = RunReport(name="local/base@1", failure=None, scores=(), written=None, log="")
    change = text_verdict("python", 5.7, margin=1.5)
    report = VerdictReport(
        model="me/made@1", verdict="gains", reason="It is better.", runtime="llama.cpp", tokens=4096, base=run,
        chimera=run, control=None, donors=(), texts=(msgspec.structs.replace(change, verdict="gains"),),
    )  # fmt: skip
    with LocalRegistry.open(home) as registry, registry.catalog.writing() as session:
        model = chimeras_by_lock(session, lock_id)[0]
        add_verdict(session, model.id, "llama.cpp", "gains", "It is better.", encode(report).decode())


def test_a_validated_chimera_has_a_line_for_each_text(organ: OrganCommand, parents: Parents) -> None:
    made = organ.done("compose", parents.graft(), "--json").values["made"]
    assert "measured: " not in organ.done("compose", parents.graft(), "--dry-run").out
    validated(organ.home, made["lock_id"])
    first = organ.done("compose", parents.graft(), "--dry-run").lines[0]
    assert first.startswith(f"measured: {made['model']} is the same chimera. It was run on ")
    assert first.endswith(": gains. It is better.")
    lines = organ.done("show", made["model"]).lines
    measured = [line.split(maxsplit=1) for line in lines if line.startswith(("verdict ", "python "))]
    assert measured[0][1].startswith("gains, measured in llama.cpp on ")
    assert measured[1] == ["python", "perplexity −5.7% ± 1.5%, gains"]
    beside = organ.done("show", made["model"], "--recipe").out
    assert beside.index("gains in llama.cpp on ") < beside.index("\nscreen: Related (change ")


def test_assemble_takes_a_recipe_and_a_chimera_by_its_lock(organ: OrganCommand, parents: Parents, out: Path) -> None:
    (item,) = organ.done("assemble", parents.graft(), "-o", out / "a.gguf", "--json").values["items"]
    assert (item["file"], item["proof"]) == (str(out / "a.gguf"), "new file")
    assert item["sha256"] == digest_of((out / "a.gguf").read_bytes())
    lock_id = organ.done("compose", parents.graft(), "--json").values["plan"]["lock_id"]
    by_lock = organ.done("assemble", f"sha256:{lock_id}", "-o", out / "b.gguf")
    assert by_lock.out.endswith("; is the composed chimera, byte for byte\n")
    assert (out / "b.gguf").read_bytes() == (out / "a.gguf").read_bytes()
    strange = ("assemble", parents.graft("stranger"), "-o", out / "d.gguf")
    assert organ(*strange).status == 5
    organ.done(*strange, "--accept", "unrelated-lineage")


def test_a_chimera_ingested_elsewhere_as_a_file_is_recognised_by_its_lock(
    organ: OrganCommand, parents: Parents, out: Path, tmp_path: Path
) -> None:
    made = organ.done("compose", parents.graft(), "-o", out / "c.gguf", "--json").values["made"]
    other = OrganCommand(tmp_path / "elsewhere")
    note = f"note: it is a chimera, with the lock sha256:{made['lock_id']}"
    assert note in other.done("ingest", out / "c.gguf").err
    assert note in other.done("show", "c").lines
    assert other.done("show", "c", "--json").values["chimera"] is None
    assert "original file, byte for byte" in other.done("assemble", "c", "-o", out / "again.gguf").out
