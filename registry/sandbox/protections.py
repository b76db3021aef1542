"""The protections that this kernel offers for a confined process, and the consequences of missing ones."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from organs.registry.errors import NoSandbox, OrganError
from organs.registry.sandbox import landlock, seccomp

CONFINE = Path(__file__).with_name("confine.py")

PROBE_FAILED = "No process was started, because the probe of the sandbox failed: {}. Try again."

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kernel:
    """The features of this system."""

    landlock_abi: int
    """The version of Landlock; 0 without Landlock."""
    has_seccomp: bool
    is_linux: bool


@dataclass(frozen=True, slots=True)
class Protection:
    """A protection of a confined process: whether this system has it, and the consequence as a sentence."""

    name: str
    is_there: bool
    sentence: str


@cache  # an error is not cached: the next call tries again
def kernel() -> Kernel:
    """Return the features that the kernel and the environment of this process (a container, systemd's filter) allow.

    A separate process tests them, because systemd's filter kills a process for a system call that is not in its list.
    The results before that are valid. Raises OrganError if the process fails for another reason, for example a lack of
    memory. Then the features are not known, and no process that must be confined is started.
    """
    features: dict[str, Any] = {"landlock_abi": 0, "has_seccomp": False}
    if not sys.platform.startswith("linux"):
        return Kernel(**features, is_linux=False)
    command = [sys.executable, "-I", "-S", "-B", str(CONFINE), json.dumps({"probe": True})]
    try:
        answer = subprocess.run(command, check=False, capture_output=True)  # noqa: S603 - a program of this project
    except OSError as error:
        raise OrganError(PROBE_FAILED.format(error.strerror)) from error
    if answer.returncode not in (0, -signal.SIGSYS):
        raise OrganError(PROBE_FAILED.format(f"it ended with {answer.returncode}"))
    for line in answer.stdout.splitlines():
        features |= json.loads(line)
    return Kernel(**features, is_linux=True)


def protections(system: Kernel, *, writing: bool, processes: bool) -> tuple[Protection, ...]:
    """Return the protections for a process; the flags say if it may write files and start processes."""
    abi, filtered, machine = system.landlock_abi, system.has_seccomp, os.uname().machine
    why_no_landlock = "Landlock is a part of Linux."
    if system.is_linux:
        why_no_landlock = (
            "Landlock is not in this kernel (it came with Linux 5.13), not switched on (lsm=landlock), or not allowed "
            "here."
        )
    why_no_filter = "This kernel does not support filters of system calls."
    if machine not in seccomp.ARCHITECTURES:
        known = " and ".join(seccomp.ARCHITECTURES)
        why_no_filter = f"The filter of system calls is not written for {machine}, only for {known}."
    protections = [
        _protection(
            "files",
            abi >= 1,
            "It reads and writes only the files that it is granted.",
            f"It can read and write every file that its user can. {why_no_landlock}",
        ),
        _protection(
            "network",
            filtered,
            "It opens no sockets.",
            "It can open sockets that Landlock does not see, and without Linux 6.7 every TCP port.",
        ),
        _protection(
            "system calls",
            filtered,
            "It starts processes, but has no UDP, no local sockets, no namespaces, no ptrace."
            if processes
            else "It starts no processes and no programs, has no UDP, no local sockets, no namespaces, no ptrace.",
            f"It can start processes (which are killed with it), use UDP and local sockets. {why_no_filter}",
        ),
        _protection(
            "signals",
            abi >= landlock.ABI_SCOPES or (filtered and not processes),
            "It sends signals only to itself.",
            "It can send signals to other processes of its user: that came with Linux 6.12 (Landlock ABI 6).",
        ),
        _protection(
            "end",
            system.is_linux,
            "It is killed with everything that it started, also when the program that started it dies.",
            "It is killed with its process group; a process that left the group stays. Linux has a way to find it.",
        ),
    ]
    if writing or not filtered:
        sentences = (
            "Outside of its folders no file is cut short.",
            "It can cut files short, also outside of its folders: Linux 6.2 has a protection (Landlock ABI 3).",
        )
        protections.insert(1, _protection("truncation", abi >= landlock.ABI_TRUNCATE, *sentences))
    return tuple(protections)


def check_protections(protections: tuple[Protection, ...], *, required: bool) -> None:
    """Log missing protections, once in this process. Raises NoSandbox if all are `required`."""
    missing = [protection for protection in protections if not protection.is_there]
    if required and missing:
        raise NoSandbox([f"{protection.name}: {protection.sentence}" for protection in missing])
    for protection in missing:
        _log_once(protection.sentence)


@cache
def _log_once(sentence: str) -> None:
    _log.warning("a confined process lacks a protection on this system: %s", sentence)


def _protection(name: str, is_there: bool, present: str, missing: str) -> Protection:
    return Protection(name, is_there, present if is_there else missing)
