"""A small TCP proxy in front of a real HTTP server, for replies that get lost and servers that never answer.

Owns the faults; the bytes between them pass unchanged. Understands just enough HTTP/1.1 to see where a request ends.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass, field

BACKLOG = 64
CHUNK_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 256 * 1024 * 1024
IO_S_MAX = 60.0
CLOSE_S_MAX = 10.0


@dataclass
class _Faults:
    """What the proxy was asked to do, guarded by the proxy's lock."""

    lose_reply_to: str | None = None
    silent: bool = False
    lost: list[str] = field(default_factory=list)


class FaultProxy:
    """Forwards `endpoint` to a server on loopback until told otherwise. Thread-safe; a context manager; `close()` leaves nothing.

    Each client connection has its own server connection and handles one request after the other.
    """

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._faults = _Faults()
        self._closing = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name="fault-proxy", daemon=True)
        self._acceptor.start()

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def lose_next_put_reply(self, key_part: str) -> None:
        """The next PUT with `key_part` in its path is carried out by the server; its reply is swallowed, the connection shut."""
        with self._lock:
            self._faults.lose_reply_to = key_part

    def wait_until_lost(self, timeout_s: float = IO_S_MAX) -> str:
        """The path of the latest PUT whose reply was lost; waits for one if there is none yet."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._faults.lost, timeout_s):
                raise TimeoutError(f"no PUT reply was lost within {timeout_s} s")
            return self._faults.lost[-1]

    def fall_silent(self) -> None:
        """From now on connections are accepted and requests read, and nothing is forwarded or answered."""
        with self._lock:
            self._faults.silent = True

    def speak_again(self) -> None:
        """Forwards again. Connections that were kept silent are closed, so that clients connect anew."""
        with self._lock:
            self._faults.silent = False
            self._changed.notify_all()

    def close(self) -> None:
        with self._lock:
            self._closing = True
            # shutdown wakes a thread that is blocked in accept() or recv(); close alone would not.
            for held in (self._listener, *self._sockets):
                _shut(held)
            self._changed.notify_all()
            threads = list(self._threads)
        for thread in (self._acceptor, *threads):
            thread.join(CLOSE_S_MAX)
            assert not thread.is_alive(), f"{thread.name} outlived the proxy"
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                if self._closing:
                    client.close()
                    return
                self._threads = [thread for thread in self._threads if thread.is_alive()]
                thread = threading.Thread(target=self._serve, args=(client,), name="fault-proxy-connection", daemon=True)
                self._threads.append(thread)
                self._sockets.add(client)
                thread.start()

    def _serve(self, client: socket.socket) -> None:
        server: socket.socket | None = None
        try:
            client.settimeout(IO_S_MAX)
            while (head := _read_head(client)) is not None:
                request = head + _read_body(client, head)
                if self._stay_silent():
                    return
                if server is None:
                    server = socket.create_connection(("127.0.0.1", self._server_port), timeout=IO_S_MAX)
                    with self._lock:
                        self._sockets.add(server)
                server.sendall(request)
                reply_head = _read_head(server)
                if reply_head is None:
                    return
                method, path = head.split(b" ", 2)[:2]
                reply = reply_head + _read_reply_body(server, reply_head, method)
                if method == b"PUT" and self._loses(path.decode(errors="replace")):
                    return
                client.sendall(reply)
        except (OSError, ValueError):
            return  # either side went away: so does the connection
        finally:
            for held in (client, server):
                if held is not None:
                    with self._lock:
                        self._sockets.discard(held)
                    _shut(held)
                    held.close()

    def _stay_silent(self) -> bool:
        """True once a silence that this request met has ended."""
        with self._changed:
            if not self._faults.silent:
                return False
            self._changed.wait_for(lambda: self._closing or not self._faults.silent, IO_S_MAX)
            return True

    def _loses(self, path: str) -> bool:
        """Called after the server's reply was read: the request has been carried out."""
        with self._changed:
            part = self._faults.lose_reply_to
            if part is None or part not in path:
                return False
            self._faults.lose_reply_to = None
            self._faults.lost.append(path)
            self._changed.notify_all()
            return True


def _shut(held: socket.socket) -> None:
    try:
        held.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # never connected, or gone already


def _read_head(source: socket.socket) -> bytes | None:
    """Through the blank line and no further: what follows is the body. None if the peer closed between messages."""
    seen = b""
    while not seen.endswith(b"\r\n\r\n"):
        # Peek, then take only what belongs to the head.
        ahead = source.recv(CHUNK_BYTES, socket.MSG_PEEK)
        if not ahead:
            if seen:
                raise ValueError("closed inside a head")
            return None
        joined = seen + ahead
        end = joined.find(b"\r\n\r\n", max(0, len(seen) - 3))
        take = len(ahead) if end < 0 else end + 4 - len(seen)
        seen += _read_exactly(source, take)
        if len(seen) > HEAD_BYTES_MAX:
            raise ValueError("head too long")
    return seen


def _fields(head: bytes) -> dict[bytes, bytes]:
    lines = head.split(b"\r\n")[1:-2]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}


def _read_body(source: socket.socket, head: bytes) -> bytes:
    fields = _fields(head)
    if fields.get(b"transfer-encoding", b"").lower() == b"chunked":
        return _read_chunks(source)
    return _read_exactly(source, int(fields.get(b"content-length", b"0")))


def _read_reply_body(source: socket.socket, head: bytes, method: bytes) -> bytes:
    status = int(head.split(b" ", 2)[1])
    if method == b"HEAD" or status in (204, 304) or status < 200:
        return b""
    return _read_body(source, head)


def _read_chunks(source: socket.socket) -> bytes:
    body = b""
    while len(body) <= BODY_BYTES_MAX:
        line = _read_line(source)
        size = int(line.split(b";", 1)[0], 16)
        body += line + _read_exactly(source, size + 2)
        if size == 0:
            return body
    raise ValueError("body too long")


def _read_line(source: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\r\n"):
        line += _read_exactly(source, 1)
        if len(line) > HEAD_BYTES_MAX:
            raise ValueError("line too long")
    return line


def _read_exactly(source: socket.socket, count: int) -> bytes:
    if count > BODY_BYTES_MAX:
        raise ValueError("body too long")
    parts = bytearray()
    while len(parts) < count:
        part = source.recv(min(CHUNK_BYTES, count - len(parts)))
        if not part:
            raise ValueError("closed inside a message")
        parts += part
    return bytes(parts)
