"""Commands that are refused: each with its exit status and one sentence, and nothing is written.

Errors about names and queries are in `tests/client/questions.py`, with the answers of the API.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from shutil import copytree

import pytest

from tests.cli.in_process import OrganCommand

WRONG_USAGE = {
    # words: the error names
    "nonsense": "no such command: 'nonsense'.",
    "serch x": "Did you mean 'search'?",
    "list": "Did you mean 'models'?",
    "chimeras": "Did you mean 'models kind:chimera'?",
    "import a.gguf": "Did you mean 'ingest'?",
    "admin submisions": "Did you mean 'submissions'?",
    "token crate": "Did you mean 'create'?",
    "--nonsense": "--nonsense",
    "show": "MODEL|DIGEST",
    "show --home x y": "write --home before the command: organ --home ",
    "push x --registry http://a.example": "write --registry before the command: organ --registry ",
    "--registry http://127.0.0.1:9 push base.gguf tuned.gguf --name me/x": "--name is for one model",
    "--registry http://127.0.0.1:9 push base.gguf --chunk 1k": "from 64.0 kB to 67.1 MB",
    "--registry http://127.0.0.1:9 push base.gguf --chunk much": "is not a size",
    "--registry http://127.0.0.1:9 push base.gguf --accept no-license": "",
    "pull https://registry.example:8935/models/ada/coder@1": (
        "write: organ --registry https://registry.example:8935 pull ada/coder@1"
    ),
    "ingest": "",
    "ingest --nonsense": "--nonsense",
    "ingest --ollama --delete-after": "still need",
    "install base": "--to",
    "install base --to olama": "'olama' is no tool and no folder; tools are ollama, lmstudio, llama-cpp, hf; to create",
    "reclaim": "give a PATH, or a tool such as --ollama",
    "run base -- echo": "COMMAND has no {}",
    "ingest --name mine/both base.gguf tuned.gguf": "--name is for one model; 2 were found",
    "ingest --convert taken taken": "",
    "ingest --convert --dry-run taken": "",
    "assemble base": "",
    "assemble base -o x.gguf --merge --shards 1G": "",
    "assemble base -o x.gguf --shards many": "many",
    "assemble base -o x.gguf --shards 0": "",
    "assemble base -o x.gguf --shards -1k": "-1k",
    "assemble base -o x.gguf --shards 1.5.0G": "1.5.0G",
    "assemble base -o x.gguf --shards 1kk": "1kk",
    "assemble base -o x.gguf --shards ١k": "",
    f"assemble base -o x.gguf --shards {'9' * 20}": "",
    "assemble base -o x.gguf --accept unrelated-lineage": "",
    "assemble recipe.yaml -o x.gguf --shards 30k": "",
    "assemble taken -o x.gguf --merge": "organ ingest DIR first",
    "assemble taken -o x.gguf --shards 1G": "organ ingest DIR first",
    "extract '*.gguf' -o out": "give one model",
    "extract base.gguf --model base.gguf -o x": "FILE|FOLDER|MODEL is given twice: --model stands for",
    "extract --model base.gguf --dir x -o y": "-o is given twice: --model stands for FILE|FOLDER|MODEL, --dir stands",
    "extract --dir x": "Missing argument 'FILE|FOLDER|MODEL'",
    "measure base --dir base": "FILE is given twice",
    "purify --dir taken --model base --method fractal -o x": "give one MODEL|FILE|DIR, not 2",
    "assemble base --dir taken -o x.gguf": "MODEL|DIR|RECIPE is given twice: --dir stands for",
    "graft --source tuned -o x": "BASE is missing: --source stands for DONOR, --target stands for BASE",
    "graft --target base -o x": "DONOR is missing",
    "graft base --source tuned -o x": "BASE is given twice",
    "transplant --target base.gguf --target tuned.gguf --source tuned.gguf -o x.gguf": "give one BASE, not 2",
    "measure": "",
    "measure base.gguf --json --csv": "",
    "measure base.gguf --json --table blocks": "",
    "measure base.gguf --table ranking": "ranking",
    "measure base.gguf --type liver": "liver",
    "measure --dry-run base": "",
    "measure --merge base.gguf --experts": "",
    "measure --merge base.gguf --type norm": "",
    "measure --merge base.gguf --dry-run": "",
    "measure base.gguf --delete-after --type norm": "",
    "measure base.gguf --delete-after hf://a/b": "",
    "measure base.gguf --missing --experts": "",
    "search --limit 0": "0",
    "search --limit 1001": "1001",
    "search --limit 9223372036854775808": "",
    "search --unheard-of": "--unheard-of",
    "search -x": "-x",
    "report --table blocks": (
        "ranking, types, type_ranges, model_types, components, scale, wells, ingests, ingest_totals"
    ),
    "report --json --format csv": "",
    "report --csv --format text": "",
    "report --csv --json": "",
    "compose": "",
    "compose --from-lock a": "",
    "compose recipe.yaml --from-lock a -o b": "",
    "compose --from-lock a -o b -y": "",
    "compose --propose base --dry-run": "--propose takes only --on, --json and -q",
    "compose recipe.yaml --on code": "--on needs --propose BASE",
    "purify base": "--method",
    "purify base --method magic": "magic",
    "purify base.gguf --method fractal": "",
    "purify base.gguf --method fractal -o x.gguf --name a/b": "",
    "imatrix base.gguf": "give -o OUT, or --name",
    "imatrix base --name a/b@2": "--name takes no @version",
    "extract-lora tuned": "--base",
    "extract-lora tuned --base base --rank many": "give a number such as 16",
    "extract-lora tuned --base base --rank 4,16": "give --dry-run, or one --rank",
    "extract-lora tuned.gguf --base base": "give -o OUT, and no --name",
    "extract-lora tuned.gguf --base base -o x.gguf --name a/b": "give -o OUT, and no --name",
    "extract-lora tuned --base base --name a/b@2": "--name takes no @version",
    "transplant base.gguf tuned.gguf stranger.gguf -o x.gguf --layers 0 --layers 1 --layers 2": "",
    "validate base --runtime-processes": "need --runtime COMMAND",
    "validate base --budget soon": "give a time such as 90s",
    "validate base --budget 5m --budget 90s": "give a time such as 90s",
    "jobs --cancel 0": "0",
    f"jobs --cancel {2**63}": "",
    "jobs --show x": "x",
    "jobs --cancel 1 --show 1": "exclude each other",
    "jobs 1 --cancel 1": "exclude each other",
    "fleet run plan.toml --scheduler foo": "",
    "fleet run plan.toml --scheduler tcp://host": "",
    "fleet run plan.toml --scheduler http://host:1": "",
    "fleet run plan.toml --scheduler tcp://host:x": "",
    "fleet run plan.toml --workers 2 --scheduler tcp://host:1": "",
    "serve --port 0": "",
    "serve --port 70000": "70000",
    "serve --workers 0": "",
    "serve --threads 1": "",
    "serve --reload now": "",
    "serve --metrics x": "",
    "login --list --forget x": "",
    "verify --read-data=3/2": "3/2",
    "verify --read-data=0/2": "0/2",
    "sweep --older-than yesterday": "yesterday",
    "sweep --older-than 1": "",
    "sweep --older-than 1w": "",
    "sweep --older-than 1.5h": "",
    "migrate-store": "name the new database (--to-database), the new place of the blobs (--to-blobs), or both",
    "repack --all base": "",
    "repack --alone --dry-run": "",
    "admin nothing": "no such command",
    "admin yank base": "--reason",
    "admin remove base -y": "--reason",
    "admin refuse 1": "--reason",
    "admin approve 0": "",
    "admin approve x": "x",
    "admin events --limit 0": "",
    "contributor quota ada much": "not a size",
    "token create": "give the name of a contributor",
    "token create ada --days 5 --forever": "exclude each other",
    "token create ada --scope delete": "delete",
    "token revoke ../../admin": "letters and digits",
    "evolve": "give a SPACE.yaml, or --base MODEL",
    "evolve 5 --trials 3": "keeps its space",
    "evolve --base base --limit chat": "write a text and a number of percent, such as chat=5",
    "evolve --base base --workers 0": "",
    "evolutions --remove": "give the number of an evolution",
    "evolutions 1 --recipe --space": "give one of",
    "evolutions 1 --trial 2": "--trial is for --recipe",
    "evolutions 0": "",
}
FAILED = {
    # words: the exit status, and the sentence
    "ingest missing.gguf": (1, "missing.gguf: nothing to ingest"),
    "ingest --name api/a base.gguf": (1, "the namespace 'api' is an address"),
    f"ingest {'x' * 5000}": (1, "File name too long"),
    f"assemble base -o {'x' * 5000}": (1, "File name too long"),
    "assemble base.gguf -o x.gguf": (1, "base.gguf: this is a GGUF file already"),
    "assemble base -o nowhere": (1, "no such folder; to write a file, give a name that ends in .gguf; to create the"),
    "assemble base -o folder": (1, "base.gguf: this is a folder"),
    "extract gone.gguf -o out": (1, "nothing to extract: no such file"),
    "extract 'a b' -o out": (1, "is not a name"),
    "extract junk.gguf -o out": (1, "magic at byte 0"),
    "extract nobody/nothing -o out": (3, "no model is registered"),
    "extract taken -o out": (1, "this is an organ directory: organ assemble taken writes its GGUF, "),
    "extract folder -o out": (1, "this is a folder without GGUF files, and no registered model has this name"),
    "extract base.gguf -o folder --force": (1, "a folder with other content"),
    "extract base.gguf -o junk.gguf/x --force": (1, "exists, and is not a folder"),
    "search theta '>=' 40": (1, "write a field before it, without spaces: theta>=40"),
    "measure gone.gguf": (1, "nothing to measure"),
    "measure base.gguf --delete-after": (1, "not a shard of a split model; only shards are deleted"),
    "scan nowhere": (1, "nowhere: nothing to scan: no such file or folder"),
    "compat base missing.gguf": (1, "missing.gguf"),
    "compose missing.yaml": (1, "No such file"),
    "compose folder": (1, "not a regular file"),
    "compose junk.gguf": (1, "not UTF-8"),
    "compose recipe.yaml --accept unrelated-linage": (
        1,
        "is not the code of a warning; did you mean unrelated-",
    ),
    "compose --propose base": (3, "no graft on base has a measured gain"),
    "purify base --method fractal --keep 0.5": (1, "Keep is for spectral"),
    "imatrix nobody": (3, "no model is registered as local/nobody"),
    "imatrix base --minutes 0": (1, "0 seconds: give a second to a week"),
    "install base --to ollama --as a/b/c/d": (1, "'a/b/c/d' is not a name of Ollama"),
    "uninstall base": (3, "base is not installed; organ scan shows what is"),
    "restore base": (1, "base: nothing of it was reclaimed"),
    "run base -- no-such-program {}": (1, "no-such-program: no such program"),
    "memory nobody": (3, "no model is registered as local/nobody"),
    "memory base --context 0 --device cuda": (
        1,
        "a context of 0 tokens: 1 to 16,777,216 can",
    ),
    "memory junk.gguf": (1, "magic at byte 0"),
    "extract-lora base --base base": (1, "local/base@1 has the same weights as local/base@1: there is no change to"),
    "extract-lora tuned --base base --rank 0": (1, "a rank is from 1 to 4,096"),
    "extract-lora tuned --base base --keep 2": (1, "the share to keep is 2.0"),
    "extract-lora tuned --base nobody": (3, "no model is registered as local/nobody"),
    "extract-lora junk.gguf --base base -o x.gguf": (1, "magic at byte 0"),
    "extract-lora tuned --base base -o folder": (1, "a folder with other content"),
    "transplant junk.gguf base.gguf -o x.gguf": (1, "magic at byte 0"),
    "transplant base.gguf cut.gguf -o x.gguf": (1, "cut.gguf"),
    "transplant base.gguf missing.gguf -o x.gguf": (1, "missing.gguf"),
    "transplant base.gguf local/name -o x.gguf": (1, "local/name"),
    "validate base.gguf --base tuned.gguf --budget 0.2s": (1, "a week"),
    "validate base.gguf --base tuned.gguf --budget 12": (1, "1,024"),
    "validate nobody": (3, "no model is registered as local/nobody"),
    "push base.gguf": (1, "--registry URL"),
    "jobs --cancel 99": (3, "there is no job 99"),
    "fleet status": (3, "there are no runs of fleets"),
    "admin show 99": (3, "there is no submission 99"),
    "admin approve 99": (3, "there is no submission 99"),
    "admin refuse 99 --reason No.": (3, "there is no submission 99"),
    "admin yank base --reason ''": (1, ""),
    "admin yank base --reason '  '": (1, ""),
    f"admin remove base -y --reason {'x' * 1001}": (1, ""),
    "admin yank bse --reason x": (3, "did you mean local/base?"),
    "contributor add ada/x": (1, "namespace"),
    "contributor add admin": (1, "an address of the catalog"),
    "contributor suspend local": (4, "cannot be suspended"),
    "contributor suspend eve": (3, "eve"),
    "token revoke aaaaaaaaa": (3, "aaaaaaaaa"),
    "migrate-store --to-blobs ftp://host/blobs": (1, "set it to the path of a folder, or to a bucket"),
    "repack nothing-of-this-name": (3, "nothing-of-this-name"),
    "evolve missing.yaml": (1, "No such file"),
    "evolve folder": (1, "not a regular file"),
    "evolve /dev/zero": (1, "not a regular file"),
    "evolve junk.gguf": (1, "not UTF-8"),
    "evolve recipe.yaml": (1, "recipe.yaml: grafts[0].from: unknown key; did you mean models?"),
    "evolve escape.yaml": (1, "no text has this name"),
    "evolve 99": (3, "there is no evolution 99"),
    f"evolve {'9' * 30}": (3, "there is no evolution 999"),
    "evolve --base nobody": (3, "no model is registered as local/nobody"),
    "evolve --base base --donors stranger": (5, "To make it all the same, accept unrelated-lineage"),
    "evolve --base base --donors tuned --text pyton": (
        1,
        "pyton: no such file or folder, and no built-in text; did you mean python?",
    ),
    "evolve --base base --donors tuned --text /dev/zero": (1, "neither a file nor a folder"),
    "evolve --base base --donors tuned --text junk.gguf": (1, "not UTF-8"),
    "evolve --base base --donors tuned --limit python=nan": (1, "limits.python"),
    "evolve --base base --donors tuned --minutes nan": (1, "minutes"),
    "evolve --base base --donors tuned --text python": (1, "the base does not run"),
    "evolutions 99": (3, "there is no evolution 99"),
    "evolutions 99 --remove": (3, "there is no evolution 99"),
}


@pytest.fixture(scope="module")
def place(family: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a registry of three models, their files, an organ directory, a recipe, a plan and bad files."""
    folder = tmp_path_factory.mktemp("refused")
    copytree(family / "home", folder / "home")
    copytree(family / "parents", folder, dirs_exist_ok=True)
    OrganCommand(folder / "home").done("extract", folder / "base.gguf", "-o", folder / "taken")
    (folder / "folder" / "base.gguf").mkdir(parents=True)
    (folder / "junk.gguf").write_bytes(bytes(range(256)))
    (folder / "cut.gguf").write_bytes((folder / "base.gguf").read_bytes()[:500])
    (folder / "recipe.yaml").write_text("base: base\ngrafts: [{from: tuned, type: organ}]\n")
    (folder / "escape.yaml").write_text('{"base": "base", "donors": "tuned", "limits": {"\\u001b[31m": 5}}')
    (folder / "plan.toml").write_text('name = "zoo"\n[[work]]\ndo = "ingest"\nfrom = ["base.gguf"]\n')
    return folder


@pytest.fixture
def organ(place: Path, monkeypatch: pytest.MonkeyPatch) -> OrganCommand:
    monkeypatch.chdir(place)
    return OrganCommand(place / "home")


def contents(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "home" not in path.relative_to(folder).parts}


@pytest.mark.parametrize("words", WRONG_USAGE)
def test_wrong_usage_ends_with_2_and_writes_nothing(words: str, organ: OrganCommand, place: Path) -> None:
    before = contents(place)
    ended = organ(*shlex.split(words))
    assert (ended.status, ended.out) == (2, "")
    assert ended.err.startswith("Usage: organ ")
    assert "Error: " in ended.err
    assert WRONG_USAGE[words] in " ".join(ended.err.split())
    assert contents(place) == before


@pytest.mark.parametrize("words", FAILED, ids=lambda words: words[:80])
def test_a_failure_is_one_sentence_and_writes_nothing(words: str, organ: OrganCommand, place: Path) -> None:
    status, sentence = FAILED[words]
    before = contents(place)
    ended = organ(*shlex.split(words))
    assert (ended.status, ended.out) == (status, "")
    first, *hints = ended.err.splitlines()
    assert first.startswith(("organ: ", "refuse "))
    assert sentence in first
    assert "\x1b" not in ended.err
    assert len(hints) <= 1
    assert contents(place) == before
