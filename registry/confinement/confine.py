"""A program of its own: sets limits on itself, then becomes the program that it is given.

    python -I -S confine.py '{"address_space_bytes": 8589934592, "cpu_seconds": 1200, "alarm_seconds": 605,
                              "file_size_bytes": 0, "niceness": 10}' PROGRAM ARGUMENT ...

It stands on the standard library alone, so that it starts in a few milliseconds, and it is what `child` starts: limits
set in between fork and exec by Python are not safe where there are threads. Limits outlive the exec, and so does the
alarm, which ends the program when whoever started it is no longer there to do so. A limit that is absent or null is not
set. It ends with 126 when a limit cannot be set and 127 when the program cannot be started.
"""

import contextlib
import json
import os
import resource
import signal
import sys

CANNOT_CONFINE = 126
CANNOT_START = 127
HARD_GRACE_SECONDS = 5

_LIMITS = {
    "address_space_bytes": "RLIMIT_AS",
    "cpu_seconds": "RLIMIT_CPU",
    "file_size_bytes": "RLIMIT_FSIZE",
}


def main() -> None:
    """Read the limits and the command from the command line; does not come back."""
    limits, program, *arguments = json.loads(sys.argv[1]), *sys.argv[2:]
    try:
        _confine(limits)
    except (OSError, ValueError) as error:
        sys.exit(_say(f"cannot set the limits: {error}", CANNOT_CONFINE))
    try:
        os.execvp(program, [program, *arguments])  # noqa: S606 - no shell is what we want
    except OSError as error:
        sys.exit(_say(f"{program}: {error.strerror}", CANNOT_START))


def _confine(limits: dict[str, int | None]) -> None:
    # No core dump: it would hold the model, and take minutes to write.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, limit in _LIMITS.items():
        wanted = limits.get(name)
        if wanted is not None:
            _lower(getattr(resource, limit), wanted)
    with contextlib.suppress(OSError):  # some containers forbid it, and it is a courtesy only
        os.nice(limits.get("niceness") or 0)
    alarm_seconds = limits.get("alarm_seconds")
    if alarm_seconds is not None:
        signal.alarm(alarm_seconds)


def _lower(limit: int, wanted: int) -> None:
    """Set a limit to `wanted`, or leave it where it is lower already."""
    _, hard = resource.getrlimit(limit)
    # Processor time at the hard limit ends with SIGKILL, which does not say why; a little below it, with SIGXCPU.
    most = wanted + (HARD_GRACE_SECONDS if limit == resource.RLIMIT_CPU else 0)
    lowered = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(limit, (min(wanted, lowered), lowered))


def _say(sentence: str, code: int) -> int:
    os.write(2, f"{sentence}\n".encode())
    return code


if __name__ == "__main__":
    main()
