"""The registry's side of a confined inspector, which parses submitted files and measures their tensors.

The inspector (`ingest.contributions.inspector`) is one process for each submission. It has no file and no database;
this side sends it the requested bytes, and checks all answers (`ingest.contributions.messages`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from organs.ingest.contributions.inspector import THREADS
from organs.ingest.contributions.messages import (
    FRONTS_MAX_BYTES,
    READ_COST_BYTES,
    READS_BASE_BYTES,
    BadMessage,
    BytesRead,
    Channel,
    Fields,
    FrontAnswer,
    FrontReader,
    Inspect,
    InspectorRefusal,
    MeasureAnswer,
    MeasureTensor,
    ReadBytes,
    Tensors,
    read_measurement,
)
from organs.ingest.dissect import Front
from organs.registry.errors import BadInput, OrganError, Text
from organs.registry.gguf import DType
from organs.registry.input_files import OpenFile
from organs.registry.measure import Measurement, Read, required_reads
from organs.registry.sandbox.process import ProcessLimits, Result, Sandbox, run_python

ADDRESS_SPACE_BYTES = 2 * 1024**3
"""The process reserves about 0.3 GiB; samples of the largest tensors take 0.4 GiB, large headers less."""
CPU_SECONDS_LEAST, CPU_BYTES_A_SECOND = 120, 4_000_000
"""Parsing and measuring take about a tenth of that."""
WALL_SECONDS_LEAST, WALL_BYTES_A_SECOND = 300, 1_000_000
"""The inspector runs as long as the whole ingest, which also waits for the disk and for other processes."""
ANSWER_SECONDS = 120.0
"""The limit of the time to send or receive one whole message. It takes milliseconds, or some seconds on a busy
machine."""
FRONTS_SECONDS = 600.0
"""The limit of the total wait for the inspector of one submission while it parses the headers. The largest accepted
header takes less than a minute."""
MEASURED_SECONDS_LEAST, MEASURED_SECONDS_EACH = 300.0, 1.0
"""The limit of the total wait of all threads for measurements: a fixed time, and more for each measurement. A
matrix of 8192 x 4096 takes 0.05 s on two busy cores."""
NICENESS = 10
GRACE_SECONDS = 1.0
"""The time that a process has to end after its pipes were closed."""
ONE_BLAS_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""The inspector has threads of its own, so each of them uses one thread of BLAS."""
PROGRAM = "organs.ingest.contributions.inspector"
TOO_LARGE = "The headers have more metadata and tensors than a submission may have."
SLOW_FRONTS = "The inspection was stopped: reading the headers took longer than {:g} s."
SLOW_MEASUREMENTS = "The inspection was stopped: {} measurements took longer than {:g} s."

_log = logging.getLogger(__name__)


class InspectionStopped(OrganError, code="inspection-stopped"):
    """The inspection of a submission exceeded a limit (`is_limit`), crashed, or gave no valid answer."""

    is_limit: bool

    def __init__(self, sentence: str, *, is_limit: bool) -> None:
        super().__init__(sentence)
        self.is_limit = is_limit


class RefusedByInspection(BadInput, code="inspection-refused"):
    """The inspection refuses a submission; `finding` is the code of the finding with the reason."""

    finding: Text

    def __init__(self, finding: str, sentence: str) -> None:
        super().__init__(sentence)
        self.finding = finding


class Inspection:
    """A conversation with an inspector.

    `how_it_ended` is called if the inspector closes its pipes too early, and returns the error with the reason; `kill`
    ends it immediately.
    """

    threads = THREADS

    def __init__(self, channel: Channel, how_it_ended: Callable[[], OrganError], kill: Callable[[], None]) -> None:
        self._channel = channel
        self._how_it_ended = how_it_ended
        self._kill = kill
        self._is_over = False
        self._sending = threading.Lock()
        """Held while a request is written. The receiver never takes it, because it must continue to read."""
        self._lock = threading.Lock()
        """Guards the attributes below; never held while anything waits for the inspector."""
        self._numbers = 0
        self._waited_seconds = 0.0
        """Total time that threads have waited for measurements."""
        self._waiting: dict[int, Future[Measurement]] = {}
        self._error: BaseException | None = None
        self._receiver: threading.Thread | None = None

    def front(self, source: OpenFile, advance: Callable[[], None]) -> Front:
        """Return the front of one file; `advance` is called at each request of the inspector for bytes.

        Raises RefusedByInspection, InspectionStopped, and the errors of reading `source`. Call it before the first
        `measure`.
        """
        reader = FrontReader(source)
        left_bytes = 2 * source.size_bytes + READS_BASE_BYTES
        try:
            self._channel.send(Inspect(source.path.name, source.size_bytes), timeout_seconds=ANSWER_SECONDS)
            while True:
                answer: FrontAnswer = self._received(FrontAnswer, ANSWER_SECONDS)
                if self._channel.received_bytes > FRONTS_MAX_BYTES:
                    raise RefusedByInspection("too-large", TOO_LARGE)
                if self._channel.waited_seconds > FRONTS_SECONDS:
                    raise InspectionStopped(SLOW_FRONTS.format(FRONTS_SECONDS), is_limit=True)
                if isinstance(answer, ReadBytes):
                    advance()
                    if answer.offset + answer.size_bytes > source.size_bytes:
                        raise BadMessage("a request for bytes outside the file")
                    left_bytes -= max(answer.size_bytes, READ_COST_BYTES)
                    if left_bytes < 0:
                        raise BadMessage("too many requests for the same bytes")
                    data = source.read_at(answer.offset, answer.size_bytes)
                    self._channel.send(BytesRead(len(data)), data, timeout_seconds=ANSWER_SECONDS)
                elif isinstance(answer, Fields):
                    reader.add_fields(answer)
                elif isinstance(answer, Tensors):
                    reader.add_tensors(answer)
                elif isinstance(answer, InspectorRefusal):
                    raise RefusedByInspection(answer.code, answer.printable)
                else:
                    return reader.finish(answer)
        except BadMessage as error:
            raise _bad_answer(error) from error
        except BrokenPipeError:
            raise self._how_it_ended() from None
        except TimeoutError:
            raise _no_answer() from None

    def measure(self, read: Read, shape: Sequence[int], dtype: DType) -> Measurement:
        """Let the inspector measure a tensor whose bytes `read` returns. Several threads can call it.

        Raises RefusedByInspection, InspectionStopped.
        """
        data = b"".join(read(offset, size) for offset, size in required_reads(shape, dtype))
        answer = Future[Measurement]()
        with self._lock:
            if self._error is not None:
                raise self._error
            if self._receiver is None:
                self._receiver = threading.Thread(target=self._receive, name="measurements", daemon=True)
                self._receiver.start()
            self._numbers += 1
            request = MeasureTensor(self._numbers, tuple(shape), dtype.name)
            self._waiting[request.number] = answer
        with self._sending:
            began = time.monotonic()
            if not answer.done():  # failed if the inspection ended while this thread waited for the lock
                try:
                    self._channel.send(request, data, timeout_seconds=ANSWER_SECONDS)
                except BrokenPipeError:
                    pass  # the receiver sees the end too, and gets the reason
                except TimeoutError:
                    self._kill()
                    self._fail(_no_answer())
        del data
        try:
            measurement = answer.result(ANSWER_SECONDS)
        except TimeoutError:
            self._kill()
            raise _no_answer() from None
        with self._lock:
            self._waited_seconds += time.monotonic() - began
            limit_seconds = MEASURED_SECONDS_LEAST + MEASURED_SECONDS_EACH * self._numbers
            is_too_slow, number = self._waited_seconds > limit_seconds, self._numbers
        if is_too_slow:
            self._kill()
            raise InspectionStopped(SLOW_MEASUREMENTS.format(number, limit_seconds), is_limit=True)
        return measurement

    def cancel(self) -> None:
        """Kill the inspector, and stop every thread that waits for a measurement."""
        self._is_over = True
        self._kill()
        self._fail(InspectionStopped("The inspection was stopped.", is_limit=False))

    def end(self) -> None:
        """Tell the inspector to end: no request follows."""
        self._is_over = True
        self._channel.end()

    def close(self) -> None:
        """Close the pipes. The inspector has ended."""
        if self._receiver is not None:
            self._receiver.join()
        self._channel.close()

    def _receive(self) -> None:
        """Pass measurements on to the threads that wait for them, until the inspector ends.

        It has no deadline: each of those threads has its own, and the end of the inspector ends this thread too.
        """
        try:
            while True:
                self._deliver(self._received(MeasureAnswer))
        except BadMessage as error:
            self._fail(_bad_answer(error))
        except BrokenPipeError:
            if not self._is_over:
                self._fail(self._how_it_ended())
        except BaseException as error:  # noqa: BLE001  # the waiting threads raise it
            self._fail(error)

    def _deliver(self, message: MeasureAnswer) -> None:
        with self._lock:
            answer = self._waiting.pop(message.number, None)
        if answer is None:
            raise BadMessage("a measurement that was not requested")
        try:
            if message.refusal is not None:
                answer.set_exception(RefusedByInspection(message.refusal.code, message.refusal.printable))
            else:
                answer.set_result(read_measurement(message.measurement))
        except BadMessage as error:
            answer.set_exception(_bad_answer(error))
            raise

    def _received(self, kind: Any, timeout_seconds: float | None = None) -> Any:
        """Return the next message. Raises BadMessage, TimeoutError, and BrokenPipeError if the inspector has ended."""
        received = self._channel.receive(kind, timeout_seconds=timeout_seconds)
        if received is None:
            raise BrokenPipeError
        return received[0]

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
            waiting = list(self._waiting.values())
            self._waiting.clear()
        for answer in waiting:
            answer.set_exception(error)


StartInspector = Callable[[int, bool], AbstractContextManager[Inspection]]
"""Starts an inspector, which ends with the block. The first argument is the total size of the files in bytes; with True
as the second, it starts only if this kernel can confine it completely."""


@contextmanager
def confined_inspector(size_bytes: int, required: bool) -> Iterator[Inspection]:
    """Start an inspector as a confined process, for files of that total size.

    With `required`, it runs only if this kernel can enforce its whole sandbox (`registry.errors.NoSandbox`).
    """
    limits = ProcessLimits(
        wall_seconds=WALL_SECONDS_LEAST + size_bytes / WALL_BYTES_A_SECOND,
        cpu_seconds=CPU_SECONDS_LEAST + size_bytes // CPU_BYTES_A_SECOND,
        address_space_bytes=ADDRESS_SPACE_BYTES,
        file_size_bytes=0,
        niceness=NICENESS,
    )
    process = InspectorProcess(limits, required=required)
    inspection = Inspection(process.channel, process.how_it_ended, process.kill)
    try:
        yield inspection
    finally:
        inspection.end()
        process.wait()
        inspection.close()


class InspectorProcess:
    """A confined process that has the other ends of the two pipes of `channel`, and nothing else."""

    def __init__(self, limits: ProcessLimits, *, required: bool = False) -> None:
        process_reads, channel_writes = os.pipe()
        channel_reads, process_writes = os.pipe()
        self.channel = Channel(channel_reads, channel_writes)
        self._limits = limits
        self._sandbox = Sandbox(required=required)
        self._descriptors = (process_reads, process_writes)
        self._is_over = threading.Event()
        self._result: Result | None = None
        self._error: BaseException | None = None
        self._keeper = threading.Thread(target=self._run, name="inspector", daemon=True)
        self._keeper.start()

    def kill(self) -> None:
        """Request the end of the process by a signal; return immediately."""
        self._is_over.set()

    def wait(self) -> None:
        """Wait for the process to end after `end`; kill it if it does not."""
        self._keeper.join(GRACE_SECONDS)
        self._is_over.set()
        self._keeper.join()

    def how_it_ended(self) -> OrganError:
        """Return the error with the reason why the process closed its pipes."""
        self.wait()
        if self._result is None:
            return self._error if isinstance(self._error, OrganError) else OrganError(f"no inspector: {self._error}")
        _log.error("an inspector failed: %s\n%s", _describe_end(self._result), self._result.log)
        return InspectionStopped(_describe_end(self._result), is_limit=self._result.stopped is not None)

    def _run(self) -> None:
        try:
            self._result = run_python(
                PROGRAM,
                self._limits,
                self._sandbox,
                arguments=list(map(str, self._descriptors)),
                variables=ONE_BLAS_THREAD,
                descriptors=self._descriptors,
                is_over=self._is_over,
            )
        except BaseException as error:  # noqa: BLE001  # passed to the threads that wait for an answer
            self._error = error
        finally:
            for descriptor in self._descriptors:  # last: this wakes the other threads
                os.close(descriptor)


def _describe_end(result: Result) -> str:
    if result.stopped is not None:
        return f"The inspection was stopped: {result.stopped}."
    ending = "ended without an answer" if result.signal_name is None else f"ended by {result.signal_name}"
    return f"The inspection crashed ({ending}). The files are probably damaged."


def _bad_answer(error: BadMessage) -> InspectionStopped:
    _log.error("an inspector gave an invalid answer: %s", error)
    sentence = f"The inspector gave an invalid answer ({error}). Nothing was registered."
    return InspectionStopped(sentence, is_limit=False)


def _no_answer() -> InspectionStopped:
    sentence = f"The inspection was stopped: no answer for {ANSWER_SECONDS:g} s."
    return InspectionStopped(sentence, is_limit=True)
