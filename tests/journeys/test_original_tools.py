"""Every program of the original pipeline has commands here: the page that lists them is tried, command by command."""

from __future__ import annotations

import csv
import io
import json
import re
import shlex
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import gguf
import pytest

from tests.cli.in_process import CommandResult, OrganCommand
from tests.cli.parents import write_parents
from tests.client.scripted_server import Answer, ReceivedRequest, scripted_server
from tests.client.test_ranges import part
from tests.ingest.test_urls import COMMIT, shard
from tests.web.live_server import running_server

PAGE = Path(__file__).parents[2] / "docs" / "original-tools.md"
FIRST, SECOND = ({f"blk.{block}.ffn_{slot}.weight" for slot in ("up", "down")} for block in (0, 1))
FEED_FORWARD = FIRST | SECOND


def documented() -> dict[str, tuple[str, ...]]:
    """Return the commands of each original program in the table of the page."""
    rows = re.findall(r"^\| ([a-z0-9_]+) \| [^|]+ \| (`[^|]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return {program: tuple(re.findall(r"`(organ [^`]+)`", commands)) for program, commands in rows}


def recipes() -> list[str]:
    return re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of the page, as the current folder: `base.gguf`, `donor.gguf`, their directories, `models`."""

    organ: OrganCommand

    def run(self, command: str) -> CommandResult:
        program, *words = shlex.split(command)
        assert program == "organ"
        return self.organ.done(*words)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    parents = write_parents(tmp_path / "files")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    organ = OrganCommand(tmp_path / "home")
    Path("models").mkdir()
    for name, data in (("base", parents.base.read_bytes()), ("donor", parents.tuned.read_bytes())):
        for folder in (".", "models"):
            Path(folder, f"{name}.gguf").write_bytes(data)
        organ.done("extract", f"{name}.gguf", "-o", name, "-q")
    for name, text in zip(("pipeline", "build"), recipes(), strict=True):
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    return Place(organ)


def tensors(path: str | Path) -> dict[str, bytes]:
    return {str(one.name): bytes(one.data) for one in gguf.GGUFReader(path).tensors}


def sources(path: str | Path) -> dict[str, str]:
    """Return whether each tensor is that of the base, of the donor, or new."""
    base, donor = tensors("base.gguf"), tensors("donor.gguf")
    return {
        name: "base" if data == base[name] else "donor" if data == donor[name] else "new"
        for name, data in tensors(path).items()
    }


def names_from(path: str | Path, source: str) -> set[str]:
    return {name for name, own in sources(path).items() if own == source}


def assembled(place: Place, folder: str) -> str:
    place.organ.done("assemble", folder, "-o", f"{folder}-checked.gguf")
    return f"{folder}-checked.gguf"


Check = Callable[[Place, tuple[str, ...]], None]


def sources_of(path: str, donor: Iterable[str] = (), new: Iterable[str] = ()) -> Check:
    """Return a check that the commands make a file or folder with these tensors of the donor, and these new ones."""

    def check(place: Place, commands: tuple[str, ...]) -> None:
        for command in commands:
            place.run(command)
        made = path if path.endswith(".gguf") else assembled(place, path)
        assert (names_from(made, "donor"), names_from(made, "new")) == (set(donor), set(new))

    return check


def check_extract(place: Place, commands: tuple[str, ...]) -> None:
    place.run(commands[0])
    assert {path.name for path in Path("extracted").iterdir()} >= {
        "manifest.json",
        "skeleton",
        "organs",
        "embed",
        "norm",
    }
    assert Path(assembled(place, "extracted")).read_bytes() == Path("base.gguf").read_bytes()


def check_measure(place: Place, commands: tuple[str, ...]) -> None:
    folder, model, organ = (place.run(f"{command} --csv").out for command in commands)
    rows = [list(csv.DictReader(io.StringIO(text))) for text in (folder, model, organ)]
    values = [[(row["tensor"], row["theta_degrees"]) for row in own] for own in rows]
    assert len(values[0]) == len(tensors("base.gguf"))
    assert values[0] == values[1]
    assert values[2] == [pair for pair in values[0] if pair[0] == "blk.0.ffn_up.weight"]
    assert all(0.0 <= float(theta) <= 90.0 for _, theta in values[0])


def check_assemble(place: Place, commands: tuple[str, ...]) -> None:
    place.run(commands[0])
    assert Path("assembled.gguf").read_bytes() == Path("base.gguf").read_bytes()


def check_api(place: Place, commands: tuple[str, ...]) -> None:
    place.organ.done("ingest", "base.gguf")
    assert commands == ("organ serve",)
    with running_server(place.organ.home, Path("log"), options=("--workers", "1")) as server:
        listed = json.loads(server.get("/api/v1/models"))
        found = json.loads(server.get("/api/v1/organs?q=slot:ffn_up+block:0"))
        data = server.get(f"/organs/{found['items'][0]['digest']}.raw")
        file = server.get("/models/local/base.gguf")
    assert [model["name"] for model in listed["items"]] == ["local/base@1"]
    assert data == tensors("base.gguf")["blk.0.ffn_up.weight"]
    assert file == Path("base.gguf").read_bytes()


def check_mass_dissect(place: Place, commands: tuple[str, ...]) -> None:
    for command in commands:
        place.run(command)
    assert set(place.organ.done("models", "-q").lines) == {"local/base@1", "local/donor@1"}
    assert sorted(path.name for path in Path("dissected").iterdir()) == ["base", "donor"]
    assert Path(assembled(place, "dissected/base")).read_bytes() == Path("base.gguf").read_bytes()


def check_mass_measure(place: Place, commands: tuple[str, ...]) -> None:
    measured = [json.loads(line) for line in place.run(commands[0]).lines]
    assert [Path(model["file"]).name for model in measured] == ["base.gguf", "donor.gguf"]
    assert all(len(model["tensors"]) == len(tensors("base.gguf")) for model in measured)
    assert not place.organ.home.exists(), "nothing is stored"


def check_stream(place: Place, commands: tuple[str, ...]) -> None:
    files = {f"NAME-{number + 1:05d}-of-00061.gguf": shard(number, 61) for number in range(61)}

    def script(request: ReceivedRequest) -> Answer:
        if request.path.startswith("/api/models/NAMESPACE/NAME/revision/"):
            siblings = [{"rfilename": name} for name in files]
            return Answer(200, json.dumps({"id": "NAMESPACE/NAME", "sha": COMMIT, "siblings": siblings}).encode())
        return part(request, files[request.path.rpartition("/")[2]])

    by_address, by_name, *from_disk = commands
    with scripted_server(script) as server:
        first = place.run(by_address.replace("https://HOST", server.url) + " --json").values
        program, *words = shlex.split(by_name)
        second = place.organ(*words, "--json", environment={"HF_ENDPOINT": server.url})
    assert (program, second.status) == ("organ", 0)
    names = [tensor["tensor"] for tensor in first["tensors"]]
    assert names == [f"blk.{number}.ffn_up.weight" for number in range(61)]
    assert second.values["tensors"] == first["tensors"]
    assert not any(Path().rglob("NAME-*.gguf")), "no shard is kept"
    for command in from_disk:
        Path("NAME-00002-of-00061.gguf").write_bytes(files["NAME-00002-of-00061.gguf"])
        place.run(command)
        assert not Path("NAME-00002-of-00061.gguf").exists()
    assert "1 of 61 shards" in place.organ("models").err


def check_report(place: Place, commands: tuple[str, ...]) -> None:
    for command in commands:
        place.run(command)
    text = Path("report.md").read_text(encoding="utf-8")
    assert "local/base@1" in text
    assert "local/donor@1" in text
    assert len(re.findall(r"^## ", text, re.MULTILINE)) >= 5


def check_dissection(place: Place, commands: tuple[str, ...]) -> None:
    ingest, report = commands
    lines = [json.loads(line) for line in place.run(ingest).lines]
    assert [(line["model"], line["organs"]) for line in lines] == [
        (f"local/{name}@1", len(tensors("base.gguf"))) for name in ("base", "donor")
    ]
    assert all(line["seconds"] > 0.0 and line["stored_bytes"] > 0 for line in lines)
    assert all(f"local/{name}@1" in place.run(report).out for name in ("base", "donor"))


BUILD = "organ compose build.yaml -o built.gguf"
CHECK_BUILD = sources_of("built.gguf", donor={*FIRST, "blk.1.attn_q.weight"})
TRIED: dict[str, tuple[tuple[str, ...], Check]] = {
    "organ_extract": (("organ extract --model base.gguf --output extracted",), check_extract),
    "organ_measure": (
        (
            "organ measure --dir base",
            "organ measure --model base.gguf",
            "organ measure --dir base --tensor blk.0.ffn_up.weight",
        ),
        check_measure,
    ),
    "organ_purify": (("organ purify --dir base --method spectral -o pure",), sources_of("pure", new=FEED_FORWARD)),
    "organ_purify_v2": (("organ purify --dir base --method fractal -o pure",), sources_of("pure", new=FEED_FORWARD)),
    "organ_graft": (
        ("organ graft --source donor --target base --layers 0-1 --type organ -o mixed",),
        sources_of("mixed", donor=FEED_FORWARD),
    ),
    "organ_assemble": (("organ assemble --dir base -o assembled.gguf",), check_assemble),
    "organ_api": (("organ serve",), check_api),
    "pipeline_935": (
        ("organ ingest base.gguf donor.gguf", "organ compose pipeline.yaml -o piped.gguf"),
        sources_of("piped.gguf", donor=SECOND, new=FIRST),
    ),
    "mass_dissect": (("organ ingest models", "organ extract models -o dissected"), check_mass_dissect),
    "mass_z_measure": (("organ measure models --json",), check_mass_measure),
    "kimi_z_stream": (
        (
            "organ measure https://HOST/NAME-00001-of-00061.gguf",
            "organ measure hf://NAMESPACE/NAME",
            "organ measure NAME-00002-of-00061.gguf --delete-after",
            "organ ingest NAME-00002-of-00061.gguf --delete-after",
        ),
        check_stream,
    ),
    "build_935": (("organ ingest base.gguf donor.gguf", BUILD), CHECK_BUILD),
    "assemble_935": (("organ ingest base donor", BUILD), CHECK_BUILD),
    "quick_chimera": (
        ("organ transplant --source donor.gguf --target base.gguf -o quick.gguf",),
        sources_of("quick.gguf", FEED_FORWARD),
    ),
    "transplant_935": (
        ("organ transplant --source donor.gguf --target base.gguf --layers 1 -o transplanted.gguf",),
        sources_of("transplanted.gguf", donor=SECOND),
    ),
    "z_report_complete": (("organ ingest models", "organ report -o report.md"), check_report),
    "dissection_report": (("organ ingest models --json", "organ report --table ingests"), check_dissection),
}
"""By original program, the commands that replace it, and the check of their results."""
PROGRAMS = [pytest.param(name, marks=[pytest.mark.long] if name == "organ_api" else []) for name in TRIED]


def test_the_page_lists_the_commands_that_are_tried_for_each_of_the_seventeen_programs() -> None:
    assert documented() == {program: commands for program, (commands, _) in TRIED.items()}
    assert len(TRIED) == 17


@pytest.mark.long
@pytest.mark.parametrize("program", PROGRAMS)
def test_the_commands_do_what_the_original_program_did(program: str, place: Place) -> None:
    commands, check = TRIED[program]
    check(place, commands)


def test_spellings_can_be_repeated_where_the_command_takes_several(place: Place) -> None:
    assert len(place.run("organ measure --model base.gguf --dir donor --json").lines) == 2
    stranger = "--source files/stranger.gguf --layers 0 --layers 1 -y"
    place.run(f"organ transplant --target base.gguf --source donor.gguf {stranger} -o two.gguf")
    assert names_from("two.gguf", "donor") == FIRST
    assert names_from("two.gguf", "new") == SECOND
