"""Memory for large buffers, which the system gets back as soon as it is free."""

from __future__ import annotations

import mmap


def own_memory(size_bytes: int) -> mmap.mmap:
    """Return writable memory of this process, page-aligned and zero; a process that is forked later has a copy.

    The allocator would keep memory of this size for the thread that frees it, and each ingest starts new threads.
    """
    return mmap.mmap(-1, size_bytes, access=mmap.ACCESS_COPY)  # the default would be shared with forked processes
