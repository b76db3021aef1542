"""Questions that scripts ask a registry, programs the API, and people the command line: all get the same answer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from organs.registry.errors import (
    BadDigest,
    BadInput,
    BadName,
    BadQuery,
    NoSuchEvolution,
    NoSuchJob,
    NotFound,
    OrganError,
)
from organs.registry.interface import Registry


@dataclass(frozen=True, slots=True)
class Question:
    """A call of a method of `Registry`, the request and the command that ask the same.

    The texts may name what only the registry knows: `{organ}`, `{file}`, `{lock}` (digests), `{cursor}`, `{job}`,
    `{evolution}`.
    """

    method: str
    arguments: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    path: str | None = None
    """Below /api/v1; None if the answer of the API is another entity."""
    command: str | None = None
    """The words after `organ`; None if no command prints this entity."""
    error: type[OrganError] | None = None

    def ask(self, registry: Registry, known: Mapping[str, str]) -> Any:
        """Call the method."""
        texts = [text.format(**known) for text in self.arguments]
        arguments = map(int, texts) if re.search("job|evolution(?!s)|trial", self.method) else texts
        options = {
            name: value.format(**known) if isinstance(value, str) else value for name, value in self.options.items()
        }
        return getattr(registry, self.method)(*arguments, **options)

    def __str__(self) -> str:
        return " ".join([self.method, *self.arguments, *(f"{name}={value}" for name, value in self.options.items())])


Q = Question
ANSWERED = (
    Q("search", ("type:organ sort:-theta",), {"limit": 3}, "/organs?q=type:organ+sort:-theta&limit=3",
      "search type:organ sort:-theta --limit 3"),
    Q("search", ("type:organ",), {"limit": 3, "after": "{cursor}"}, "/organs?q=type:organ&limit=3&after={cursor}",
      "search type:organ --limit 3 --after {cursor}"),
    Q("search", ("unique:organ",), {}, "/organs?q=unique:organ"),
    Q("search", ("model:local/base nobodyknows",), {}, "/organs?q=model:local/base+nobodyknows"),
    Q("search", ("like:{organ}",), {"limit": 5}, "/organs?q=like:{organ}&limit=5", "search like:{organ} --limit 5"),
    Q("count", ("block:1 theta>=10",), {}, "/facets?q=block:1+theta>=10"),
    Q("models", (), {}, "/models", "models"),
    Q("models", ("kind:model sort:-theta",), {}, "/models?q=kind:model+sort:-theta", "models kind:model sort:-theta"),
    Q("ranked_models", (), {"limit": 2}, "/models?ranked=1&limit=2", "models --rank --limit 2"),
    Q("suggestions", ("tun",), {"of": "names"}, "/suggestions?q=tun&of=names"),
    Q("suggestions", ("type:f",), {"of": "organs", "limit": 2}, "/suggestions?q=type:f&of=organs&limit=2"),
    Q("organs_of", ("tuned",)),
    Q("versions", ("base",), {}, "/models/local/base/versions"),
    Q("versions", ("base@1",), {"limit": 1}),
    Q("organ", ("{organ}",), {}, "/organs/{organ}", "show {organ}"),
    Q("compare", ("base", "tuned"), {}, "/compare?first=base&second=tuned", "compare base tuned"),
    Q("compare", ("tuned", "stranger"), {}, "/compare?first=tuned&second=stranger", "compare tuned stranger"),
    Q("report", (), {"limit": 2}, None, "report --limit 2"),
    Q("report", ("tuned",), {}, "/reports/models/local/tuned", "report tuned"),
    Q("report", ("base",), {"limit": 3}, "/reports/models/local/base?limit=3", "report base --limit 3"),
    Q("leaderboard", (), {"limit": 20}, "/leaderboard?limit=20", "leaderboard"),
    Q("leaderboard", ("base",), {"on": "code", "limit": 1}, "/leaderboard?base=base&on=code&limit=1",
      "leaderboard base --on code --limit 1"),
    Q("sizes", ("base",), {}, "/models/local/base/sizes"),
    Q("figures"),
    Q("storage", (), {"limit": 1}, "/storage?limit=1", "storage --limit 1"),
    Q("fitting", ("base",), {}, "/fitting?base=base", "compat base"),
    Q("fitting", ("tuned",), {"limit": 1}, "/fitting?base=tuned&limit=1", "compat tuned --limit 1"),
    Q("compatibility", ("base", "tuned"), {}, "/compatibility?base=base&donor=tuned", "compat base tuned"),
    Q("compatibility", ("base", "stranger"), {}, "/compatibility?base=base&donor=stranger", "compat base stranger"),
    Q("chimera", ("{lock}",), {}, "/chimeras/{lock}"),
    Q("jobs", (), {"limit": 1000}, "/jobs?limit=1000", "jobs --limit 1000"),
    Q("job", ("{job}",), {}, "/jobs/{job}", "jobs {job}"),
    Q("evolutions", (), {"limit": 2}, "/evolutions?limit=2", "evolutions --limit 2"),
    Q("evolution", ("{evolution}",), {}, "/evolutions/{evolution}", "evolutions {evolution}"),
)  # fmt: skip
REFUSED = (
    Q("search", ("typ:organ",), {}, "/organs?q=typ:organ", "search typ:organ", BadQuery),
    Q("search", (), {"limit": 0}, "/organs?limit=0", None, BadQuery),
    Q("suggestions", ("a",), {"of": "all", "limit": 21}, "/suggestions?q=a&limit=21", None, BadQuery),
    Q("save_query", ("models", "a+b", "tag:code"), {}, None, "models --save a+b tag:code", BadInput),
    Q("save_query", ("organs", "a", "tag:code"), {}, None, "search --save a tag:code", BadQuery),
    Q("delete_query", ("models", "nothing"), {}, None, "models --forget nothing", NotFound),
    Q("search", (), {"limit": 1001}, "/organs?limit=1001", None, BadQuery),
    Q("models", (), {"limit": 0}, "/models?limit=0", None, BadQuery),
    Q("models", (), {"limit": 1001}, "/models?limit=1001", None, BadQuery),
    Q("search", (), {"after": "x"}, "/organs?after=x", "search sort:-theta --after x", BadQuery),
    Q("search", ("like:0123456789abcdef",), {}, "/organs?q=like:0123456789abcdef", "search like:0123456789abcdef",
      NotFound),
    Q("search", ("likeness>=0.5",), {}, "/organs?q=likeness>=0.5", "search likeness>=0.5", BadQuery),
    Q("count", ("theta>=much",), {}, "/facets?q=theta>=much", "search theta>=much --facets", BadQuery),
    Q("models", ("slot:ffn_up",), {}, "/models?q=slot:ffn_up", "models slot:ffn_up", BadQuery),
    Q("models", ("sort:rank",), {}, "/models?q=sort:rank", "models sort:rank", BadQuery),
    Q("ranked_models", ("no:field",), {}, "/models?ranked=1&q=no:field", "models --rank no:field", BadQuery),
    Q("model", ("bse",), {}, "/models/local/bse", "show bse", NotFound),
    Q("model", ("a/b/c",), {}, None, "show a/b/c", BadName),
    Q("model", ("sha256:0123456789",), {}, "/models/lookup?digest=0123456789", None, NotFound),
    Q("organs_of", ("nobody",), {}, "/models/local/nobody/organs", None, NotFound),
    Q("versions", ("nobody",), {}, "/models/local/nobody/versions", None, NotFound),
    Q("versions", ("base",), {"limit": 101}, None, None, BadQuery),
    Q("sizes", ("nobody",), {}, "/models/local/nobody/sizes", None, NotFound),
    Q("organ", ("sha256:xyz",), {}, "/organs/xyz", "show sha256:xyz", BadDigest),
    Q("organ", ("0123456789",), {}, "/organs/0123456789", "show 0123456789", NotFound),
    Q("compare", ("base", "nobody"), {}, "/compare?first=base&second=nobody", "compare base nobody", NotFound),
    Q("report", ("nobody",), {}, "/reports/models/local/nobody", "report nobody", NotFound),
    Q("leaderboard", ("nobody",), {}, "/leaderboard?base=nobody", "leaderboard nobody", NotFound),
    Q("fitting", ("nobody",), {}, "/fitting?base=nobody", "compat nobody", NotFound),
    Q("fitting", ("base",), {"limit": 0}, "/fitting?base=base&limit=0", None, BadQuery),
    Q("compatibility", ("base", "nobody"), {}, "/compatibility?base=base&donor=nobody", "compat base nobody", NotFound),
    Q("chimera", ("0123456789",), {}, "/chimeras/0123456789", None, NotFound),
    Q("partial_recipe", ("nobody",), {}, None, None, NotFound),
    Q("files", ("nobody",), {}, None, "assemble nobody -o x.gguf", NotFound),
    Q("assemble", ("nobody", "x.gguf"), {}, None, "extract nobody -o x", NotFound),
    Q("organ_files", ("0123456789",), {}, None, None, NotFound),
    Q("card", ("nobody",), {}, None, None, NotFound),
    Q("job", ("999999",), {}, "/jobs/999999", "jobs --show 999999", NoSuchJob),
    Q("evolutions", (), {"limit": 0}, "/evolutions?limit=0", None, BadQuery),
    Q("evolution", ("999999",), {}, "/evolutions/999999", "evolutions 999999", NoSuchEvolution),
    Q("continue_evolution", ("999999",), {}, None, "evolve 999999", NoSuchEvolution),
    Q("remove_evolution", ("999999",), {}, None, "evolutions 999999 --remove", NoSuchEvolution),
    Q("trial_recipe", ("{evolution}",), {"trial": 99}, None, None, BadInput),
    Q("trial_recipe", ("999999",), {}, None, "evolutions 999999 --recipe", NoSuchEvolution),
    Q("cancel_job", ("999999",), {}, None, "jobs --cancel 999999", NoSuchJob),
)  # fmt: skip
"""With a class of `registry.errors`, which has the status of an answer and of a command (tests/test_errors.py)."""
