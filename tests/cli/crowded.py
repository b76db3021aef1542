"""A registry with a row in every list of the command line, under names that are longer than a terminal."""

from __future__ import annotations

import json
from pathlib import Path
from shutil import copytree

from sqlalchemy import select

from organs.ingest.jobs.runner import add_job
from organs.registry.catalog.register.accounts import add_contributor, create_token
from organs.registry.catalog.tables import ModelRow, SubmissionRow, now
from organs.registry.local import LocalRegistry
from tests.gains import add_gains

LONG = "A-Model-With-A-Long-Name-Of-Several-Parts-That-Nobody-Would-Like-To-Type-v1.0"
BASE, DONOR, OTHER = f"acme/{LONG}-F16", f"acme/{LONG}-Coder-Q4_K_M", f"acme/{LONG}-Other-Q8_0"
CHIMERA = f"me/{LONG}-Chimera-F16"
OWNER = "somebody-with-a-rather-long-name-for-an-account"
FINDING = {"severity": "warn", "code": "odd", "sentence": "It is \x1b[31modd in a way that takes long to tell."}


def put_submission(registry: LocalRegistry, owner: str, name: str = "thing", state: str = "quarantined") -> int:
    """Add a contributor with a submission; return the number of the submission."""
    with registry.catalog.writing() as session:
        submission = SubmissionRow(
            contributor_id=add_contributor(session, owner).id,
            namespace=owner,
            name=name,
            state=state,
            manifest="{}",
            metadata_given="{}",
            findings=json.dumps([FINDING]),
            size_bytes=5_000_000,
            created_at=now(),
            changed_at=now(),
        )
        session.add(submission)
        session.flush()
        return submission.id


def add_validated_chimeras(registry: LocalRegistry) -> None:
    """Add two validated chimeras of `base`: `me/mixed` with organs of `tuned`, and `me/odd` of `stranger`."""
    for name, donor, python, narrative in (("mixed", "tuned", 5.0, -2.0), ("odd", "stranger", -950.0, -4000.0)):
        graft = registry.compose("base").graft(donor, type="organ").accept("unrelated-lineage")
        graft.named(f"me/{name}").plan().register()
        add_gains(registry, f"me/{name}@1", {"python": python, "narrative": narrative})


def make_crowded(family: Path, home: Path) -> Path:
    """Make a registry of three models, two validated chimeras, jobs, tokens, contributors and submissions."""
    copytree(family / "home", home)
    with LocalRegistry.open(home) as registry:
        add_validated_chimeras(registry)
        put_submission(registry, OWNER, LONG)
        put_submission(registry, "ann")
        put_submission(registry, "bob", state="ready")
        with registry.catalog.writing() as session:
            names = {"base": BASE, "tuned": DONOR, "stranger": OTHER, "mixed": CHIMERA, "odd": "me/odd"}
            for model in session.scalars(select(ModelRow)):
                model.namespace, model.name = names[model.name].split("/")
            owner = add_contributor(session, "carol").id
            for label in ("the machine in the cellar, on the left", "laptop"):
                create_token(session, owner, ("read", "upload", "tokens"), label, 30)
        for limit in (1, 2):
            add_job(registry, "report", {"model": BASE, "limit": limit})
    home.chmod(0o700)  # `organ admin doctor` fails if others can read it
    return home
