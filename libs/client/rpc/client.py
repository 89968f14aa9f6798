"""The client of gRPC, imported as `muster.ClusterClient`: programs as jobs, and any other method.

`muster.Client` speaks HTTP and has more conveniences; this one is for clusters whose clients speak
gRPC. For users: docs/grpc.md. Tests: tests/integration/test_cluster_client.py.
"""

import os
import random
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.parse import urlsplit

import grpc

from libs.client import archive
from libs.client.address import chosen
from libs.client.calls import Call
from libs.client.errors import (
    ApiError,
    InvalidRequest,
    JobFailed,
    NotFound,
    TimedOut,
    Unavailable,
    asked_pause_s,
    field_of,
)
from libs.client.profile import Profile, away_s, read_profile
from libs.client.retries import Retries
from libs.client.rpc.messages import error_from, message_of, method_of
from libs.client.rpc.program import gpu_requirements_of, program_of
from libs.client.timing import ANSWER_S, RETRY_S, SEND_S, Patience, check_bounds
from libs.common.errors import Refused
from libs.common.life.job_life import COMPLETED, ENDED
from libs.rpc.messages import class_of

PIECE_BYTES: Final = 1 << 20
# Answers of this size are accepted: gRPC's own default is 4 MiB.
ANSWER_BYTES_MAX: Final = 64 << 20
# A connection whose other end is gone is noticed during a call. The gateway permits such pings.
KEEPALIVE: Final = (
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.max_pings_without_data", 0),
)
OWN_HOSTS: Final = ("localhost", "127.0.0.1", "::1")


class ClusterClient:
    """A client of the gateway at `target`, for example "host:9090".

    The key is `key`, else MUSTER_API_KEY, else that of the profile if the profile names the same
    host. With `ca_file`, or `tls` for the authorities that this machine trusts, the connection is
    encrypted; otherwise the key crosses the network in plain text. Close it, or use `with`.
    """

    def __init__(
        self,
        target: str,
        key: str | None = None,
        *,
        profile: str | os.PathLike[str] | None = None,
        tls: bool = False,
        ca_file: str | os.PathLike[str] | None = None,
        timeout_s: float = ANSWER_S,
        retry_s: float = RETRY_S,
    ) -> None:
        check_bounds(timeout_s, retry_s, 1)
        if ":" not in target or "/" in target:
            raise InvalidRequest(f"target: {target!r} must look like host:9090", field="target")
        try:
            environ = chosen(os.environ, None, key, profile)
            found, self._away_s = read_profile(environ), away_s(environ)
        except Refused as error:
            raise InvalidRequest(str(error), field=field_of(str(error)) or "profile") from error
        self.target = target
        self.timeout_s = timeout_s
        self.retry_s = retry_s
        own = bool(environ.get("MUSTER_API_KEY")) or _is_of(found, target)
        self._key, self._user = (found.key, found.user) if own else ("", "")
        options = (("grpc.max_receive_message_length", ANSWER_BYTES_MAX), *KEEPALIVE)
        if tls or ca_file is not None:
            trusted = None if ca_file is None else Path(ca_file).read_bytes()
            credentials = grpc.ssl_channel_credentials(trusted)
            self._channel = grpc.secure_channel(target, credentials, options)
        else:
            self._channel = grpc.insecure_channel(target, options)

    def __repr__(self) -> str:
        return f"<ClusterClient of {self.target}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    def submit_job(
        self,
        model_path: str | os.PathLike[str],
        input_data: Any = None,  # noqa: ANN401  whatever JSON can hold
        gpu_requirements: float | Mapping[str, Any] | None = None,
        *,
        idempotency_key: str | None = None,
        **fields: Any,  # noqa: ANN401  the fields of a job
    ) -> "ClusterJob":
        """Submit a program with its input as a job, and return it.

        `model_path` is a program (.py or .sh) or a directory with main.py or main.sh, which is sent
        along, or the absolute path of a program on the nodes. `input_data` becomes a file whose
        path is the program's first argument: bytes and files as they are, everything else as JSON.
        `gpu_requirements` is a number of GPUs (below 1 a part of one), or a mapping: `count`,
        `memory_gb`, `type`, and every other field of a job about devices. `fields` are further
        fields of a job, for example `nodes`, `time_limit`, `env`.

        Raises InvalidRequest with the wrong argument, and every other ApiError.
        """
        program = program_of(model_path, input_data)
        body = {"command": list(program.command), **gpu_requirements_of(gpu_requirements)}
        if taken := [name for name in fields if name in body]:
            raise InvalidRequest(f"{taken[0]}: it is given twice", field=taken[0])
        body |= {"user": self._user or None, **fields}
        if program.brings_files:
            body["upload"] = self._sent(program.directory, program.files)
        once = idempotency_key or uuid.uuid4().hex
        return ClusterJob(self, self.call("Jobs/SubmitJob", body, idempotency_key=once))

    def job(self, ref: str) -> "ClusterJob":
        """Return the job of an id, a unique prefix of one, or a name. Raises NotFound."""
        return ClusterJob(self, self.call("Jobs/GetJob", {"ref": ref}))

    def call(
        self,
        name: str,
        fields: Mapping[str, Any] | None = None,
        *,
        idempotency_key: str = "",
    ) -> Any:  # noqa: ANN401  a message of the method's
        """Call a method that answers once, for example "Nodes/ListNodes"; return its message.

        A call that reads, or that has an idempotency key, is repeated if its answer was lost.
        """
        method = method_of(name)
        if method.client_streaming or method.server_streaming:
            raise InvalidRequest(f"method: {name} is a stream: use stream")
        request = message_of(method.input_type, fields or {})
        reads = method.name.startswith(("Get", "List", "Find", "Explain", "Check", "Plan", "Who"))
        call = Call("CALL", name, repeatable=reads or bool(idempotency_key))
        tries = Retries(call, self.retry_s, time.monotonic())
        while True:
            try:
                return self._begin(method, request, self.timeout_s, idempotency_key)
            except grpc.RpcError as fault:
                error = error_from(fault, name, self.target)
                chance = random.random()  # nosec B311  it only spreads the tries of many clients
                pause_s = tries.pause_s(error, time.monotonic(), chance)
                if pause_s is None:
                    raise error from fault
                time.sleep(pause_s)

    def stream(
        self,
        name: str,
        fields: Mapping[str, Any] | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Iterator[Any]:
        """Call a method that answers with a stream, for example "Events/Watch"; yield its messages.

        `timeout_s` bounds the whole stream.
        """
        method = method_of(name)
        if method.client_streaming or not method.server_streaming:
            raise InvalidRequest(f"method: {name} does not answer with a stream: use call")
        call = self._begin(method, message_of(method.input_type, fields or {}), timeout_s, "")
        try:
            yield from call
        except grpc.RpcError as fault:
            raise error_from(fault, name, self.target) from fault
        finally:
            call.cancel()

    def _begin(
        self,
        method: Any,  # noqa: ANN401  of protobuf
        request: Any,  # noqa: ANN401  a message, or several
        timeout_s: float | None,
        idempotency_key: str,
    ) -> Any:  # noqa: ANN401  a message, or a call
        first = "stream" if method.client_streaming else "unary"
        last = "stream" if method.server_streaming else "unary"
        begin = getattr(self._channel, f"{first}_{last}")(
            f"/{method.containing_service.full_name}/{method.name}",
            request_serializer=class_of(method.input_type).SerializeToString,
            response_deserializer=class_of(method.output_type).FromString,
        )
        metadata = [("authorization", f"Bearer {self._key}")] if self._key else []
        if idempotency_key:
            metadata.append(("idempotency-key", idempotency_key))
        return begin(request, metadata=metadata, timeout=timeout_s)

    def _sent(self, directory: Path | None, files: Mapping[str, bytes]) -> str:
        """Send an archive unless the cluster has it, and return its SHA-256."""
        with tempfile.TemporaryFile(prefix="muster-upload-") as file:
            sha256 = archive.write(file, directory, files)
            try:
                self.call("Jobs/FindUpload", {"sha256": sha256})
            except NotFound:
                file.seek(0)
                method = method_of("Jobs/SendUpload")
                try:
                    self._begin(method, _pieces(method, sha256, file), SEND_S, "")
                except grpc.RpcError as fault:
                    raise error_from(fault, "Jobs/SendUpload", self.target) from fault
        return sha256

    @property
    def away_s(self) -> float:
        """Return how long a wait outlives a gateway that does not answer."""
        return self._away_s


class ClusterJob:
    """A job. `shown` is its message as it was at the last read; its fields are attributes too."""

    def __init__(self, client: ClusterClient, shown: Any) -> None:  # noqa: ANN401  a message
        self._client = client
        self.shown = shown

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  a field of any type
        if name.startswith("_") or name == "shown":
            raise AttributeError(name)
        return getattr(self.shown, name)

    def __repr__(self) -> str:
        return f"<job {self.shown.id} {self.shown.state}>"

    def refresh(self) -> "ClusterJob":
        """Read the job again, and return it."""
        self.shown = self._client.call("Jobs/GetJob", {"ref": self.shown.id})
        return self

    def wait(self, timeout_s: float | None = None, check: bool = False) -> "ClusterJob":
        """Wait until the job has ended, also while the gateway is away for a while; return it.

        Raises TimedOut after `timeout_s`, and with `check` JobFailed if the job did not complete.
        """
        until = None if timeout_s is None else time.monotonic() + timeout_s
        patience = Patience(self._client.away_s)
        while self.shown.state not in ENDED:
            left_s = None if until is None else until - time.monotonic()
            if left_s is not None and left_s <= 0:
                raise TimedOut(
                    f"job {self.shown.id} is still {self.shown.state} after {timeout_s:g} s"
                )
            try:
                fields = {"ref": self.shown.id}
                for shown in self._client.stream("Jobs/WaitJob", fields, timeout_s=left_s):
                    self.shown = shown
                    patience.reset()
            except Unavailable as error:
                if until is None or time.monotonic() < until:
                    _pause(patience, error)
        if check and self.shown.state != COMPLETED:
            raise JobFailed(
                f"job {self.shown.id} is {self.shown.state}: {self.shown.reason}",
                state=self.shown.state,
                reason=self.shown.reason,
                code=self.shown.exit_code if self.shown.HasField("exit_code") else None,
            )
        return self

    def output(self, stream: str = "stdout", rank: int = 0) -> bytes:
        """Return what the job has written to stdout or stderr so far."""
        fields = {"ref": self.shown.id, "stream": stream, "rank": rank}
        return b"".join(piece.data for piece in self._client.stream("Jobs/ReadOutput", fields))

    def follow(self, rank: int = 0) -> Iterator[tuple[str, bytes]]:
        """Return the output as it is written, as pairs of the stream's name and bytes."""
        fields = {"ref": self.shown.id, "rank": rank}
        for frame in self._client.stream("Jobs/FollowJob", fields):
            if frame.data:
                yield frame.stream, frame.data

    def file(self, path: str) -> bytes:
        """Return a file of the job's working directory. Raises NotFound."""
        fields = {"ref": self.shown.id, "path": path}
        return b"".join(piece.data for piece in self._client.stream("Jobs/ReadFile", fields))

    def cancel(self) -> "ClusterJob":
        """End the job: SIGTERM, and SIGKILL after its grace period. Raises Conflict if it ended."""
        self.shown = self._client.call("Jobs/CancelJob", {"ref": self.shown.id})
        return self


def _pause(patience: Patience, error: ApiError) -> None:
    """Pause before the next try. Raises the error if the gateway was away for too long."""
    pause_s = patience.pause_s(time.monotonic(), asked_pause_s(error))
    if pause_s is None:
        raise error
    time.sleep(pause_s)


def _pieces(method: Any, sha256: str, file: IO[bytes]) -> Iterator[Any]:  # noqa: ANN401  messages
    kind = class_of(method.input_type)
    yield kind(sha256=sha256)
    while data := file.read(PIECE_BYTES):
        yield kind(data=data)


def _is_of(profile: Profile, target: str) -> bool:
    """Return whether the profile's address is on the host of `target`."""
    host = target.rpartition(":")[0].strip("[]").lower()
    known = (urlsplit(profile.url).hostname or "").lower()
    return host == known or (host in OWN_HOSTS and known in OWN_HOSTS)
