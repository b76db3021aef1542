"""The attempts of a hostile program in the place of a confined one: `make escape`.

Each attempt must be refused, as this user and, for root, as another user.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.faults.hostile.harness import Arena, Case, Options, Suite
from tests.sandbox.escape import SECRETS, Outcome, search_path, try_in

OTHER_USER = "nobody"
AS_ANOTHER_USER = """
import json, tempfile
from dataclasses import asdict
from pathlib import Path
from tests.sandbox.escape import try_in
with tempfile.TemporaryDirectory(prefix="organ-escape-") as folder:
    print(json.dumps(list(map(asdict, try_in(Path(folder))))))
"""


@contextmanager
def opened(arena: Arena, _options: Options) -> Iterator[list[Case]]:
    """Make all attempts, also as another user if this one is root; each is a case that must be refused."""
    os.environ |= SECRETS
    outcomes = {pwd.getpwuid(os.getuid()).pw_name: try_in(arena.folder)}
    if os.getuid() == 0:
        outcomes[OTHER_USER] = _as_another_user()
    yield [
        Case(f"as {user}", outcome.attempt, partial(check, outcome)) for user in outcomes for outcome in outcomes[user]
    ]


def check(outcome: Outcome) -> str:
    assert not outcome.succeeded, f"it worked: {outcome.detail}"
    return "refused"


def _as_another_user() -> list[Outcome]:
    """Run the same as another user, with an interpreter that this user may run."""
    user = pwd.getpwnam(OTHER_USER)
    environment = {"PYTHONPATH": search_path(), "PATH": os.environ["PATH"], **SECRETS}
    for python in (sys.executable, shutil.which("python3", path="/usr/local/bin:/usr/bin")):
        try:
            done = subprocess.run(
                [python or "", "-P", "-B", "-c", AS_ANOTHER_USER],
                env=environment,
                cwd="/",
                user=user.pw_uid,
                group=user.pw_gid,
                extra_groups=(),
                capture_output=True,
                text=True,
                check=False,
            )
        except OSError:
            continue
        if done.returncode == 0:
            return [Outcome(**outcome) for outcome in json.loads(done.stdout.splitlines()[-1])]
    print(f"not tried as {OTHER_USER}: no interpreter that this user may run")
    return []


SUITE = Suite(opened, {})
