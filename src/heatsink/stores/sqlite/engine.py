"""One SQLite file for the log, the counters and the registry, with shared fsyncs.

One thread writes. All operations that callers submit during a commit share the next commit. So with
more concurrent callers, there are fewer commits per call. A transaction is acknowledged after its
fsync (`synchronous=FULL`). So a crash of the process or the machine loses no acknowledged write.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from importlib.resources import files
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Event, Thread
from typing import Any, Generic, TypeVar

from heatsink.errors import Closed, HeatsinkError, Unavailable, WrongIncarnation
from heatsink.primitives.owner import Owner

BATCH_MAX = 500
BUSY_S = 1.0  # how long to wait for a lock: longer than a commit takes; callers may retry
APPLICATION_ID = 0x48454154
ANSWER_S = 5.0  # when a put gives up waiting for the writer; its caller may retry it
LOOKS = 4  # how often the age of waiting puts is checked in this time
OPEN_ATTEMPTS = 100
OPEN_PAUSE_S = 0.05
LATE = (
    f"SQLite did not finish the write within {ANSWER_S:g} s: check the disk, and whether another "
    "process keeps the file locked. The write may still be applied: retry with the same id"
)
Result = TypeVar("Result")
Operation = Callable[[sqlite3.Connection], Result]
SCHEMA = files(__package__).joinpath("schema.sql").read_text()


class WriteJob(Generic[Result]):
    """An operation for the writer thread, and the future on which the operation's caller waits."""

    __slots__ = ("error", "future", "operation", "result")

    def __init__(self, operation: Operation[Result], future: asyncio.Future[Result]) -> None:
        self.operation = operation
        self.future = future
        self.result: Result | None = None
        self.error: BaseException | None = None

    def run(self, connection: sqlite3.Connection) -> None:
        """Run the operation inside a shared transaction.

        If the operation fails, only its own changes are rolled back.
        """
        self.error = None
        connection.execute("SAVEPOINT job")
        try:
            self.result = self.operation(connection)
        except Exception as error:
            if not connection.in_transaction:
                raise  # for example a full disk: SQLite has rolled back everything
            connection.execute("ROLLBACK TO job")
            self.error = _ours(error)
        connection.execute("RELEASE job")

    def settle(self) -> None:
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(self.error)
        else:
            self.future.set_result(self.result)  # type: ignore[arg-type]

    def give_up(self) -> None:
        """If the operation has `is_prompt`, raise `Unavailable` in the caller that waits for it.

        The operation may still run.
        """
        if getattr(self.operation, "is_prompt", False) and not self.future.done():
            self.future.set_exception(Unavailable(LATE))


RunBatch = Callable[[sqlite3.Connection, list[WriteJob[Any]]], None]


class WriterThread:
    """The writer thread.

    The thread opens a transaction, calls `run_batch` to run the queued jobs in it, and commits.
    `check_file` is called before each batch.

    The writer itself times out a job with `is_prompt` that waits for too long, so that callers need
    no timer for each job. Jobs run in the order of their arrival. So the writer needs no time for
    each job: every quarter of `ANSWER_S` it notes how many jobs have arrived. All jobs up to a note
    that is `ANSWER_S` old are overdue.
    """

    def __init__(
        self,
        connect: Callable[[], sqlite3.Connection],
        run_batch: RunBatch,
        check_file: Callable[[], None],
    ) -> None:
        self._connect = connect
        self._run_batch = run_batch
        self._check_file = check_file
        self._jobs: SimpleQueue[WriteJob[Any] | None] = SimpleQueue()
        self._waiting: deque[WriteJob[Any]] = deque()  # the same jobs, and those that run
        self._submitted = 0
        self._looks: deque[int] = deque(maxlen=LOOKS - 1)
        self._timer: asyncio.TimerHandle | None = None
        self._owner = Owner()
        self._thread: Thread | None = None
        self._closed = False

    def submit(self, operation: Operation[Result]) -> asyncio.Future[Result]:
        if self._closed:
            raise Closed.meanwhile("the SQLite store")
        self._owner.check()
        if self._thread is None:
            self._start()
        assert self._owner.loop is not None
        future: asyncio.Future[Result] = self._owner.loop.create_future()
        job = WriteJob(operation, future)
        self._jobs.put(job)
        self._waiting.append(job)
        self._submitted += 1
        if self._timer is None:
            self._timer = self._owner.loop.call_later(ANSWER_S / LOOKS, self._look)
        return future

    def _look(self) -> None:
        """Time out the jobs that are overdue, and note how many jobs have arrived so far.

        A job is overdue if it had arrived by the oldest kept note and still waits.
        """
        assert self._owner.loop is not None
        if len(self._looks) == LOOKS - 1:
            overdue = self._looks[0] - (self._submitted - len(self._waiting))
            for job in islice(self._waiting, max(overdue, 0)):
                job.give_up()
        self._looks.append(self._submitted)
        self._timer = None
        if self._waiting:
            self._timer = self._owner.loop.call_later(ANSWER_S / LOOKS, self._look)
        else:
            self._looks.clear()

    def _start(self) -> None:
        self._thread = Thread(target=self._work, name="heatsink-sqlite-writer", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            connection = self._connect()
        except HeatsinkError as error:
            self._refuse_all(error)
            return
        while (batch := self._next_batch()) is not None:
            commit(connection, batch, self._checked_batch)
            self._report(batch)
        connection.close()

    def _checked_batch(self, connection: sqlite3.Connection, batch: list[WriteJob[Any]]) -> None:
        self._check_file()
        self._run_batch(connection, batch)

    def _refuse_all(self, error: HeatsinkError) -> None:
        """Let queued and later calls raise `error`, since the file could not be opened."""
        while (batch := self._next_batch()) is not None:
            for job in batch:
                job.error = error
            self._report(batch)

    def _next_batch(self) -> list[WriteJob[Any]] | None:
        """Wait for a job, then return all queued jobs. Returns None when the writer is closed."""
        first = self._jobs.get()
        if first is None:
            return None
        batch = [first]
        try:
            while len(batch) < BATCH_MAX:
                job = self._jobs.get_nowait()
                if job is None:
                    self._jobs.put(None)
                    break
                batch.append(job)
        except Empty:
            pass
        return batch

    def _report(self, batch: Sequence[WriteJob[Any]]) -> None:
        assert self._owner.loop is not None
        with suppress(RuntimeError):  # the loop is closed: no caller waits
            self._owner.loop.call_soon_threadsafe(self._settle_all, batch)

    def _settle_all(self, batch: Sequence[WriteJob[Any]]) -> None:
        for job in batch:
            self._waiting.popleft()
            job.settle()

    async def close(self) -> None:
        """Finish the queued jobs, then end the thread."""
        if self._closed:
            return
        self._closed = True
        if self._thread is not None:
            self._jobs.put(None)
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join)
        if self._timer is not None:
            self._timer.cancel()


def commit(connection: sqlite3.Connection, batch: list[WriteJob[Any]], run_batch: RunBatch) -> None:
    """Commit all jobs in one transaction. If the transaction fails, commit the jobs one by one.

    So one job's error does not fail the other jobs. Jobs whose caller was cancelled are skipped.
    """
    batch = [job for job in batch if not job.future.cancelled()]
    if not batch:
        return
    try:
        connection.execute("BEGIN IMMEDIATE")
        run_batch(connection, batch)
        connection.execute("COMMIT")
    except Exception as error:
        _roll_back(connection)
        if len(batch) == 1:
            batch[0].error = _ours(error)
            return
        for job in batch:
            commit(connection, [job], run_batch)


def _ours(error: Exception) -> Exception:
    return unavailable(error) if isinstance(error, sqlite3.Error) else error


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def unavailable(error: sqlite3.Error) -> Unavailable:
    first = "free space on its disk, then " if "is full" in str(error) else ""
    return Unavailable(f"SQLite failed ({error}): {first}retry")


def open_file(file: Path, schema: str) -> sqlite3.Connection:
    """Open a connection and create missing tables.

    The connection waits while other processes hold locks on the file.
    """
    connection = _connect(file)
    pause = Event()
    attempts = 0
    while True:
        try:
            _check_owner(connection, file)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            connection.executescript(schema)
            return connection
        except sqlite3.OperationalError as error:
            attempts += 1
            if "locked" not in str(error) or attempts == OPEN_ATTEMPTS:
                raise _not_opened(file, error) from error
            pause.wait(OPEN_PAUSE_S)  # another process creates the file; SQLite does not wait here
        except sqlite3.Error as error:
            raise _not_opened(file, error) from error


def open_alone(file: Path) -> sqlite3.Connection:
    """Open a connection that locks out all other connections.

    Raises `Unavailable` while another connection is open, in this process or another. In WAL mode
    every open connection holds a shared lock, even an idle connection. When a process is killed,
    the kernel releases its lock.
    """
    connection = _connect(file)
    try:
        connection.execute("PRAGMA locking_mode=EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        connection.execute("COMMIT")
        connection.execute("PRAGMA synchronous=FULL")
        _check_owner(connection, file)
    except sqlite3.OperationalError as error:
        connection.close()
        if "locked" not in str(error):
            raise _not_opened(file, error) from error
        raise Unavailable(
            f"{str(file)!a} is in use: stop every process that has it open, then retry"
        ) from error
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(file: Path) -> sqlite3.Connection:
    try:
        return sqlite3.connect(file, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    except (sqlite3.Error, ValueError, OSError) as error:
        raise _not_opened(file, error) from error


def _check_owner(connection: sqlite3.Connection, file: Path) -> None:
    """Raise `Unavailable` if the file is the database of another application.

    Heatsink writes its application id before it creates tables. So a process that sees Heatsink's
    tables also finds the id, even while another process creates the file.
    """
    tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    (owner,) = connection.execute("PRAGMA application_id").fetchone()
    if owner != APPLICATION_ID and tables:
        raise Unavailable(f"{str(file)!a} is another application's database: name a new file")


def _not_opened(file: Path, error: Exception) -> Unavailable:
    cures = {
        "not a database": ": check the path, or name a new file",
        "unable to open": ": check that you may write to the file and its folder",
        "readonly": ": readers write there too, to coordinate with writers. Check that you may "
        "write to the file and its folder, or use a copy of the file",
        "is full": ": free space on its disk",
    }
    cure = next((cure for part, cure in cures.items() if part in str(error)), "")
    return Unavailable(f"cannot open {str(file)!a} as a SQLite database: {error}{cure}")


class SqliteDatabase:
    """One SQLite file. A writer thread commits writes in batches.

    Reads run in the caller's thread: a read from the page cache takes some tens of microseconds,
    less than a round trip to another thread. A read sees every commit that was acknowledged before
    the read.
    """

    def __init__(self, file: Path, run_batch: RunBatch) -> None:
        self._file = file
        self._inode: int | None = None
        self._writer = WriterThread(lambda: open_file(file, SCHEMA), run_batch, self.check_file)
        self._reader: sqlite3.Connection | None = None
        self._closed = False

    def check_file(self) -> None:
        """Raise `WrongIncarnation` if the file was deleted, replaced or emptied.

        Without this check, writes would go to a deleted file.
        """
        try:
            found = self._file.stat()
            inode, size = found.st_ino, found.st_size
        except OSError:
            inode, size = -1, -1
        if self._inode is None:
            self._inode = inode
        elif inode < 0 <= self._inode:  # a database in memory never had a file
            raise WrongIncarnation(f"{self._file} was deleted or moved: restore it and reconnect")
        elif inode != self._inode:
            raise WrongIncarnation(f"{self._file} was replaced by another file: reconnect")
        elif not size:
            raise WrongIncarnation(f"{self._file} was emptied: restore a backup and reconnect")

    def write(self, operation: Operation[Result]) -> asyncio.Future[Result]:
        """Run `operation` in the writer thread and return the future of its result.

        Operations of other callers may run in the same transaction.
        """
        return self._writer.submit(operation)

    def read(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run an operation that executes one statement.

        An operation with several statements needs `read_at_once`: in `read`, each statement could
        see a different state.
        """
        if self._closed:
            raise Closed.meanwhile("the SQLite store")
        if self._reader is None:
            self._reader = open_file(self._file, SCHEMA)
        try:
            return operation(self._reader)
        except sqlite3.Error as error:
            self.check_file()
            raise unavailable(error) from error

    def read_at_once(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run an operation with several statements. All of them see the same state."""

        def inside(connection: sqlite3.Connection) -> Result:
            connection.execute("BEGIN")
            try:
                return operation(connection)
            finally:
                connection.execute("COMMIT")

        return self.read(inside)

    async def read_in_a_thread(self, operation: Callable[[sqlite3.Connection], Result]) -> Result:
        """Run a long read on a connection and in a thread of its own. It sees one state."""

        def read() -> Result:
            with closing(open_file(self._file, SCHEMA)) as connection:
                connection.execute("BEGIN")
                try:
                    return operation(connection)
                finally:
                    connection.execute("COMMIT")

        if self._closed:
            raise Closed.meanwhile("the SQLite store")
        try:
            return await asyncio.to_thread(read)
        except sqlite3.Error as error:
            self.check_file()
            raise unavailable(error) from error

    async def close(self) -> None:
        self._closed = True
        await self._writer.close()
        if self._reader is not None:
            self._reader.close()
            self._reader = None
