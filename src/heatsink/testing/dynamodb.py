"""The DynamoDB emulator for tests of applications, in a thread of this process.

    with LocalDynamoDB() as dynamodb:
        client = dynamodb.client()          # boto3, if it is installed

With pytest, the fixture `dynamodb` is available as soon as Heatsink is installed. Each process has
one emulator, which is empty at the start of each test. `pytest -p no:heatsink` turns it off.
"""

from __future__ import annotations

import asyncio
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any

from heatsink.errors import HeatsinkError, Unavailable

if TYPE_CHECKING:
    from heatsink.emulator.control import Control
    from heatsink.emulator.settings import EngineSettings

START_S = 30.0
REGION = "us-east-1"


class LocalDynamoDB:
    """An emulator on a free port of this machine, which runs in a thread of this process.

    `settings` are those of `heatsink dynamo`. By default there are no limits, so requests are
    throttled only if a test asks for it. The blocking methods may be called from any thread.

        with LocalDynamoDB() as dynamodb:
            dynamodb.fail(operation="PutItem", count=2)
    """

    def __init__(self, settings: EngineSettings | None = None, seed: int = 0) -> None:
        self._settings = settings
        self._seed = seed
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="heatsink-dynamodb", daemon=True)
        self._ready = threading.Event()
        self._stop: asyncio.Event | None = None
        self._control: Control | None = None
        self._failure: Exception | None = None
        self.url = ""

    def __enter__(self) -> LocalDynamoDB:
        self.start()
        return self

    def __exit__(
        self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the emulator. Returns when it accepts requests.

        Raises `Misconfigured` if a package is missing, and `Unavailable` if it does not start.
        """
        self._thread.start()
        if self._ready.wait(START_S) and self.url:
            return
        if self._failure is not None:
            self.stop()
        if isinstance(self._failure, HeatsinkError):
            raise self._failure
        why = f": {self._failure}" if self._failure else f" within {START_S:g} s"
        raise Unavailable(f"the emulator did not start{why}") from self._failure

    def stop(self) -> None:
        """Stop the emulator. Its data is lost."""
        if self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(START_S)
        self._loop.close()

    def reset(self) -> None:
        """Delete all tables and faults, in less than a millisecond."""
        from heatsink.emulator.control import Reset

        self._do("reset", Reset())

    def fail(self, **wanted: Any) -> None:
        """Let the next requests fail. The fields are those of `heatsink.emulator.control.Fail`."""
        from heatsink.emulator.control import FailNext

        self._do("fail", FailNext(**wanted))

    def throttle(self, table: str, key: Any, seconds: float | None = None) -> None:
        """Throttle all requests for a partition key, for a time or until the next `reset`."""
        from heatsink.emulator.control import Throttle

        self._do("throttle", Throttle(table, key, seconds))

    def split(self, table: str, key: Any = None) -> None:
        """Split the first partition of a table, or isolate a partition key in its own."""
        from heatsink.emulator.control import Divide

        self._do("split", Divide(table, key=key))

    def client(self, **options: Any) -> Any:
        """Return a client of boto3 for this emulator. Raises ImportError without boto3."""
        return self._boto().client("dynamodb", **self._options(options))

    def resource(self, **options: Any) -> Any:
        """Return a resource of boto3 for this emulator. Raises ImportError without boto3."""
        return self._boto().resource("dynamodb", **self._options(options))

    def _boto(self) -> Any:
        import boto3

        return boto3

    def _options(self, options: dict[str, Any]) -> dict[str, Any]:
        return {
            "endpoint_url": self.url,
            "region_name": REGION,
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
            **options,
        }

    def _do(self, command: str, wanted: Any) -> None:
        """Carry out a command in the emulator's thread, and wait for it."""

        async def carry_out() -> None:
            getattr(self._control, command)(wanted)

        asyncio.run_coroutine_threadsafe(carry_out(), self._loop).result(START_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except Exception as error:
            if self.url:  # it had started: nobody waits for the error
                raise
            self._failure = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        from random import Random

        from heatsink.emulator.server import EngineServer
        from heatsink.emulator.settings import EngineSettings
        from heatsink.primitives.clock import SystemClock

        unlimited = EngineSettings(port=0, write_limit=1e9, read_limit=1e9)
        server = EngineServer(self._settings or unlimited, SystemClock(), Random(self._seed))
        self._stop = asyncio.Event()
        self._control = server.control
        self.url = await server.start()
        self._ready.set()
        await self._stop.wait()
        await server.stop()
