"""`organ verify`: check that every stored blob exists and is right."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from organs.cli.console import (
    output_options,
    print_remark,
    print_result,
    print_sentence,
    progress_bar,
)
from organs.cli.options import flag
from organs.cli.registries import local_registry
from organs.registry.amounts import plural_text, size_text
from organs.registry.errors import CorruptBlob

if TYPE_CHECKING:
    from organs.registry.entities.server import RegistryTotals
    from organs.registry.upkeep import Fault, VerifyReport

_SHARE = re.compile(r"([0-9]{1,4})/([0-9]{1,4})", re.ASCII)


@click.command()
@click.option(
    "--read-data",
    is_flag=False,
    flag_value="1/1",
    metavar="[N/T]",
    help="Also read and check the bytes of all blobs. With N/T, check only one part: 2/7 checks the second of seven.",
)
@flag(
    "--repair",
    "Set faulty blobs aside, and correct wrong totals. To replace a faulty blob, ingest a file that contains it.",
)
@output_options(json="Print the report as JSON.")
def verify(read_data: str | None, repair: bool) -> int:
    """Check that every blob exists, and that the running totals are right. The bytes of blobs are not read.

    With --read-data, the command also reads the bytes of blobs, and compares each blob with its digest. It lists each
    faulty blob with the tensors that need it, and prints how many bytes the registry stores. The exit status is 7 for
    faulty blobs, 1 for wrong totals.
    """
    from organs.registry.upkeep import Share
    from organs.registry.upkeep import verify as run_verify

    share = None
    if read_data is not None:
        match = _SHARE.fullmatch(read_data)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise click.UsageError(f"{read_data!r} is not a part: write 2/7 for the second of seven parts")
        share = Share(int(match[1]), int(match[2]))
    with local_registry() as registry:
        with progress_bar("verify", registry.totals().size_bytes) as advance:
            report = run_verify(registry.catalog, registry.blobs, read_data=share, repair=repair, progress=advance)
        totals = registry.totals()  # again: --repair can have corrected them
    about = {**asdict(report), "size_bytes": totals.size_bytes, "stored_bytes": totals.stored_bytes}
    print_result(about, lambda _about: _print_verify(report, totals, repair=repair))
    return CorruptBlob.exit_code if report.faults else int(bool(report.miscounted))


def print_faults(faults: Sequence[Fault]) -> None:
    """Print faulty blobs, each with the tensors that need it."""
    for fault in faults:
        print_sentence(fault.reason)
        for name in fault.needed_by:
            print_sentence(name, "  needed by ")


def _print_verify(report: VerifyReport, totals: RegistryTotals, *, repair: bool) -> None:
    print_faults(report.faults)
    read = f", {size_text(report.read_bytes)} read and hashed" if report.read_bytes else ""
    state = f"{len(report.faults)} faulty" if report.faults else "all are sound"
    if report.blobs:
        print_sentence(f"{size_text(totals.stored_bytes)} stored, {size_text(totals.size_bytes)} plain")
        print_sentence(f"{plural_text(report.blobs, 'blob', 'blobs')} checked{read}: {state}")
    else:
        print_sentence("the registry has no blobs")
    if report.quarantined:
        print_sentence(
            f"{plural_text(report.quarantined, 'blob', 'blobs')} set aside: to replace them, "
            "ingest the files of the models above again"
        )
    if report.recovered:
        done = "in use again" if repair else "the next read or organ verify --repair uses them again"
        print_sentence(f"{len(report.recovered)} blobs that were set aside have the right bytes again; {done}")
    if report.counted_organs:
        print_sentence(f"{report.counted_organs} organs checked for weights that are NaN or infinite")
    for name, (total, counted) in report.miscounted.items():
        print_sentence(f"the running total of {name.replace('_', ' ')} is {total:,}, but the count is {counted:,}")
    if report.orphans:
        print_remark(
            f"{plural_text(report.orphans, 'file belongs', 'files belong')} to no blob; "
            "organ sweep removes them when they are a day old"
        )
        if not report.blobs:
            print_remark("if this registry is not new, its database is missing: restore it before a sweep")
