"""Fair sharing of the threads and the download places of one worker among clients.

Only the event loop of a worker (`web.server.worker`) uses these classes. They never block, and they are not
thread-safe.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import Protocol

PARKED_SECONDS = 0.1
"""Seconds without reading after which a download gives its place to a waiting download."""
SHARE_SECONDS = 2.0
"""Seconds after which a download that is read quickly gives its place to a waiting download, if there is one."""


class AddressLimit:
    """Counter of the requests or bytes in progress for each address, with one `limit` for every address.

    An address with a count of 0 uses no memory.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts = Counter[str]()

    def has_room(self, address: str) -> bool:
        """Return whether the count of `address` is below the limit."""
        return self._counts[address] < self.limit

    def take(self, address: str) -> bool:
        """Add 1 to the count and return True; return False if the count of `address` has reached the limit."""
        if not self.has_room(address):
            return False
        self.add(address, 1)
        return True

    def add(self, address: str, amount: int) -> None:
        """Add `amount` to the count without checking the limit."""
        if amount:
            self._counts[address] += amount

    def release(self, address: str, amount: int = 1) -> None:
        """Subtract `amount` from the count."""
        self._counts[address] -= amount
        if not self._counts[address]:
            del self._counts[address]

    def __len__(self) -> int:
        return len(self._counts)


Job = Callable[[], None]


class FairQueue:
    """Queue that runs at most `limit` jobs at a time.

    Addresses take turns: an address with many waiting jobs does not delay the jobs of other addresses.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._running = 0
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()

    def add(self, address: str, job: Job) -> None:
        """Start `job` now or later. The caller must call `finished` when the job has ended."""
        if self._running < self._limit:
            self._running += 1
            job()
        else:
            self._waiting.setdefault(address, deque()).append(job)

    def finished(self) -> None:
        """Note that a job has ended, and start the next one."""
        self._running -= 1
        if self._waiting:
            address, jobs = self._waiting.popitem(last=False)
            self._running += 1
            job = jobs.popleft()
            if jobs:
                self._waiting[address] = jobs  # this address is now the last in the queue
            job()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))


class Download(Protocol):
    """An answer that is sent piece by piece. While it has a place it may hold buffers and open files."""

    @property
    def can_pause(self) -> bool:
        """Whether `pause` frees the buffers and open files of the download."""

    def proceed(self) -> None:
        """Produce the next piece. Called when the download has a place."""

    def pause(self, done: Callable[[], None]) -> None:
        """Free all buffers, then call `done` in the event loop. Called when the download has lost its place."""


class DownloadPlaces:
    """A fixed number of places for downloads. Only a download with a place may hold buffers.

    A download takes a place before it produces a piece, and keeps it. When the client does not read, the download is
    parked. After PARKED_SECONDS a waiting download gets its place, and the parked download continues later from the
    same position. A download that lost its place in this way is slow. Slow downloads wait behind all others and share
    `slow_limit` places, because a chunk must be decoded again each time that a download continues.
    """

    def __init__(self, limit: int, slow_limit: int, clock: Callable[[], float]) -> None:
        self._limit = limit
        self._slow_limit = slow_limit
        self._clock = clock
        self._holding: dict[Download, float] = {}
        """Downloads with a place, with the time at which they got it."""
        self._parked: dict[Download, float] = {}
        """Downloads with a place whose clients do not read, with the time since when; the longest wait first."""
        self._slow: set[Download] = set()
        self._pausing: dict[Download, bool] = {}
        """Downloads that lost their places and are still freeing their buffers, and whether they want a place again."""
        self._waiting: OrderedDict[Download, None] = OrderedDict()
        self._waiting_slow: OrderedDict[Download, None] = OrderedDict()

    def enter(self, download: Download) -> None:
        """Register a download that already holds buffers: give it a place, or make it free them."""
        if len(self._holding) + len(self._pausing) < self._limit or not download.can_pause:
            self._holding[download] = self._clock()
        else:
            self._pausing[download] = False
            download.pause(partial(self._paused, download))

    def want(self, download: Download) -> None:
        """Call `download.proceed` as soon as the download has a place, possibly in this call."""
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
            self._slow.discard(download)  # the client reads quickly now
        if self._waiting and download.can_pause and self._clock() - since > SHARE_SECONDS:
            self._take_place(download)
            self._pausing[download] = True
        else:
            download.proceed()

    def park(self, download: Download) -> None:
        """Note that the client does not read: other downloads may get the place."""
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
        """Give free places and the places of parked downloads to waiting downloads.

        Call it regularly, because parked downloads lose their places after a time.
        """
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
        needed_places = len(self._waiting) or 1
        for download, since in list(self._parked.items()):
            if len(self._pausing) >= needed_places or now - since < PARKED_SECONDS:
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
        wants_place = self._pausing.pop(download)
        if wants_place:
            self.want(download)
        else:
            self.serve()

    def __len__(self) -> int:
        return len(self._holding)
