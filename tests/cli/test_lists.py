"""Lists: a table for people, pages as JSON, names with -q, and the command for the next page."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from shutil import copy

import pytest

from organs.registry.local import LocalRegistry
from tests.cli.crowded import BASE, CHIMERA, DONOR, OTHER, OWNER
from tests.cli.in_process import OrganCommand
from tests.search.catalogs import random_models, write_models

HEADINGS = {
    "search": "digest model tensor type dtype shape size θ |Z| spectral stable rank",
    "search sort:-rank": "digest model tensor type dtype shape size θ |Z| spectral stable rank",
    f"search type:organ fits:{BASE}": "change digest model tensor type dtype shape size θ |Z| spectral stable rank",
    "models": "model kind architecture license parameters tensors size mean θ added downloads uses",
    f"models kin:{BASE}": (
        "change model kind architecture license parameters tensors size mean θ added downloads uses"
    ),
    "leaderboard": "gain change chimera base donor tensors largest loss",
    "jobs": "job kind state progress requested note",
    "token list": "token contributor label scopes state expires created by last used",
    "contributor list": "contributor state used quota since",
    "admin submissions": "id contributor model kind size tensors new submitted",
    "admin events": "time (UTC) contributor action details",
}
"""Commands with the headings of their tables."""
NAMES = {
    "models": ["me/odd@1", f"{CHIMERA}@1", f"{DONOR}@1", f"{OTHER}@1", f"{BASE}@1"],
    "models --rank": [f"{OTHER}@1", f"{DONOR}@1", f"{BASE}@1"],
    "leaderboard": [f"{CHIMERA}@1", "me/odd@1"],
    "jobs": ["2", "1"],
    "contributor list": ["ann", "bob", "carol", "local", OWNER],
    "admin submissions": ["1", "2"],
}
"""Lists with the names that -q prints."""
PAGED = [words for words in NAMES if words != "contributor list"]
EMPTY = {
    "models": "No models yet. Try: organ ingest FILE.gguf\n",
    "models kind:chimera": (
        "No chimera matches. To find donors for a model: organ compat BASE. To make one: organ compose RECIPE\n"
    ),
    "models kind:adapter": "Nothing matches. organ models --help lists the fields.\n",
    "search type:organ": "Nothing matches. organ search --help lists the fields.\n",
    "jobs": "No jobs.\n",
    "leaderboard": "No validated chimera has a settled gain or loss. Validate a chimera: organ validate CHIMERA\n",
    "token list": "No tokens.\n",
    "admin submissions": "No submissions to review.\n",
    "storage": "Nothing is stored yet. To begin: organ ingest FILE.gguf\n",
}
"""What the commands say of an empty registry."""


@pytest.fixture(scope="module")
def many(migrated_database: Path, tmp_path_factory: pytest.TempPathFactory) -> OrganCommand:
    """The command with a registry of 60 models."""
    home = tmp_path_factory.mktemp("many")
    copy(migrated_database, home)
    with LocalRegistry.open(home) as registry:
        write_models(registry, random_models(60, seed=4))
    return OrganCommand(home)


@pytest.mark.parametrize("words", HEADINGS)
def test_a_list_is_a_table_for_people_and_a_page_for_programs(words: str, crowded: OrganCommand) -> None:
    header, *lines = crowded.done(*words.split()).lines
    rows = [line for line in lines if not re.match(r"\d+: warn: ", line)]  # findings below the submissions
    page = crowded.done(*words.split(), "--json").values
    assert " ".join(header.split()) == HEADINGS[words]
    assert page.keys() >= {"items", "next"}
    assert len(rows) > 0
    if words != "search":  # which begins with feed-forward organs for people only
        assert len(rows) == len(page["items"])


@pytest.mark.parametrize("words", NAMES)
def test_quiet_prints_names_only(words: str, crowded: OrganCommand) -> None:
    ended = crowded.done(*words.split(), "-q")
    assert (ended.lines, ended.err) == (NAMES[words], "")


@pytest.mark.parametrize("words", EMPTY)
def test_an_empty_list_says_so_to_people_only(words: str, organ: OrganCommand) -> None:
    ended = organ.done(*words.split())
    assert (ended.out, ended.err) == ("", EMPTY[words])
    if words != "storage":  # which is no list of names
        quiet = organ.done(*words.split(), "-q")
        assert (quiet.out, quiet.err) == ("", "")
        assert organ.done(*words.split(), "--json").values["items"] == []


def all_pages(organ: OrganCommand, words: list[str], limit: int) -> list[str]:
    """Follow the hints after pages of at most `limit` names to the end."""
    seen: list[str] = []
    command = [*words, "--limit", str(limit), "-q"]
    while True:
        ended = organ.done(*command)
        assert len(ended.lines) <= limit
        seen += ended.lines
        hints = [line for line in ended.err.splitlines() if not line.startswith("note: ")]
        if not hints:
            return seen
        said, _, hint = "\n".join(hints).partition(": ")
        assert said == "more" or said.startswith("more of ")
        first, *command = shlex.split(hint)
        assert first == "organ"


@pytest.mark.parametrize("words", [*PAGED, f"search fits:{BASE} type:organ", "leaderboard --on code"])
def test_the_hint_after_a_page_is_the_command_for_the_next_page(words: str, crowded: OrganCommand) -> None:
    whole = crowded.done(*words.split(), "-q").lines
    assert len(whole) > 1
    assert all_pages(crowded, words.split(), 1) == whole


@pytest.mark.parametrize(
    "words",
    [
        *(["search", "-type:norm sort:-size"], ["search", "-type:norm", "-coder"], ["search", "-coder"]),
        *(["search", 'by:"carol smith"', "sort:z"], ["models", "--rank"], ["models", "-kind:adapter sort:-params"]),
        *(["models", "-coder", "--rank"], ["models", "sort:theta"]),
    ],
)
def test_the_hint_repeats_a_query_so_that_a_shell_reads_it(words: list[str], many: OrganCommand) -> None:
    whole = many.done(*words, "--limit", 1000, "-q").lines
    assert len(whole) > 4
    assert all_pages(many, words, len(whole) // 3) == whole
