"""Fair sharing of the threads and the download places of one worker among clients.

Only the event loop of a worker (`web.server.worker`) uses these classes: they never block, and are not safe for
threads.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

PARKED_SECONDS = 0.1
"""A download that has not been read for so long gives its place to one that waits."""


SHARE_SECONDS = 2.0
"""After so long a download that is read quickly lets another have its place, if one waits."""


class AddressLimit:
    """Count what each address has under way, in requests or in bytes, up to `limit` for each.

    Addresses with nothing are not kept.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts = Counter[str]()

    def has_room(self, address: str) -> bool:
        """Return whether one more may begin."""
        return self._counts[address] < self.limit

    def take(self, address: str) -> bool:
        """Count one more; return False where the address has `limit` already."""
        if not self.has_room(address):
            return False
        self.add(address, 1)
        return True

    def add(self, address: str, amount: int) -> None:
        """Count `amount` more, whatever the limit."""
        if amount:
            self._counts[address] += amount

    def release(self, address: str, amount: int = 1) -> None:
        """Count `amount` less."""
        self._counts[address] -= amount
        if not self._counts[address]:
            del self._counts[address]

    def __len__(self) -> int:
        return len(self._counts)


Job = Callable[[], None]


class FairQueue:
    """Start at most `limit` jobs at once; of those that wait, addresses take turns, so that none keeps out others."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()

    def add(self, address: str, job: Job) -> None:
        """Start `job`, now or later. Whoever runs it calls `finished` at its end."""
        if self._running < self._limit:
            self._running += 1
            job()
        else:
            self._waiting.setdefault(address, deque()).append(job)

    def finished(self) -> None:
        """Start the next job after one has ended."""
        self._running -= 1
        if self._waiting:
            address, jobs = self._waiting.popitem(last=False)
            self._running += 1
            job = jobs.popleft()
            if jobs:
                self._waiting[address] = jobs  # behind all other addresses
            job()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))


class Download(Protocol):
    """An answer that is sent piece by piece. While it has a place it may hold buffers and open files."""

    @property
    def can_pause(self) -> bool:
        """Whether `pause` frees what it holds."""

    def proceed(self) -> None:
        """Produce the next piece; the download has a place."""

    def pause(self, done: Callable[[], None]) -> None:
        """Free all buffers, then call `done` in the event loop; the download has lost its place."""


class DownloadPlaces:
    """Places for downloads that hold buffers: few, whatever the number of downloads.

    A download takes a place before it produces a piece, and keeps it. When the client does not read, the download is
    parked; after PARKED_SECONDS another one that waits gets its place, and it continues later where it was. Those that
    lost their place this way are slow: they wait behind all others and share `slow_limit` places, because each return
    costs decoding a chunk again.
    """

    def __init__(self, limit: int, slow_limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._slow_limit = slow_limit
        self._clock = clock
        self._holding: dict[Download, float] = {}
        """Downloads with a place, and since when they have it."""
        self._parked: dict[Download, float] = {}
        """Those of them that wait for their clients, and since when; the longest first."""
        self._slow: set[Download] = set()
        self._pausing: dict[Download, bool] = {}
        """Downloads that lost their places and are still freeing what they hold; whether they want one again."""
        self._waiting: OrderedDict[Download, None] = OrderedDict()
        self._waiting_slow: OrderedDict[Download, None] = OrderedDict()

    def enter(self, download: Download) -> None:
        """Start a download that already holds buffers: give it a place, or let it free them."""
        if len(self._holding) + len(self._pausing) < self._limit or not download.can_pause:
            self._holding[download] = self._clock()
        else:
            self._pausing[download] = False
            download.pause(partial(self._paused, download))

    def want(self, download: Download) -> None:
        """Call `download.proceed` as soon as it has a place, which may be now."""
        since = self._holding.get(download)
        if download in self._pausing:
            self._pausing[download] = True
            return
        if since is None:
            queue = self._waiting_slow if download in self._slow else self._waiting
            queue[download] = None
            self.serve()
            return
        parked = self._parked.pop(download, None)
        if download in self._slow and (parked is None or self._clock() - parked < PARKED_SECONDS):
            self._slow.discard(download)  # it is read quickly now
        if self._waiting and download.can_pause and self._clock() - since > SHARE_SECONDS:
            self._take_place(download)
            self._pausing[download] = True
        else:
            download.proceed()

    def park(self, download: Download) -> None:
        """Let others have the place: the client does not read."""
        if download in self._holding and download.can_pause:
            self._parked[download] = self._clock()

    def leave(self, download: Download) -> None:
        """Forget a download that has ended."""
        self._holding.pop(download, None)
        self._parked.pop(download, None)
        self._waiting.pop(download, None)
        self._waiting_slow.pop(download, None)
        self._slow.discard(download)
        if download in self._pausing:
            self._pausing[download] = False
        self.serve()

    def serve(self) -> None:
        """Give free places, and those of parked downloads, to those that wait. Call it now and then: time passes."""
        while self._waiting or self._may_serve_slow():
            if len(self._holding) + len(self._pausing) >= self._limit:
                self._take_place_of_parked()
                return
            queue = self._waiting or self._waiting_slow
            download, _ = queue.popitem(last=False)
            self._holding[download] = self._clock()
            download.proceed()

    def _may_serve_slow(self) -> bool:
        if not self._waiting_slow:
            return False
        slow = [download for download in self._holding if download in self._slow]
        if len(slow) < self._slow_limit:
            return True
        self._take_place_of_parked(only_slow=True)
        return False

    def _take_place_of_parked(self, *, only_slow: bool = False) -> None:
        now = self._clock()
        wanted = len(self._waiting) or 1
        for download, since in list(self._parked.items()):
            if len(self._pausing) >= wanted or now - since < PARKED_SECONDS:
                return
            if not only_slow or download in self._slow:
                self._slow.add(download)
                self._take_place(download)

    def _take_place(self, download: Download) -> None:
        del self._holding[download]
        self._parked.pop(download, None)
        self._pausing[download] = False
        download.pause(partial(self._paused, download))

    def _paused(self, download: Download) -> None:
        wants = self._pausing.pop(download)
        if wants:
            self.want(download)
        else:
            self.serve()

    def __len__(self) -> int:
        return len(self._holding)
