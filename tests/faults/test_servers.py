"""The tools of the fault tests do what they say, against the real server."""

from __future__ import annotations

import uuid

import obstore
import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from obstore.exceptions import AlreadyExistsError, BaseError

from tests.proxy import FaultProxy
from tests.server_s3 import S3Server


@pytest.fixture
def key() -> str:
    return f"{uuid.uuid4().hex}/object"


def test_a_second_create_of_one_key_fails(s3_server: S3Server, key: str) -> None:
    store = s3_server.client()
    obstore.put(store, key, b"first", mode="create")
    with pytest.raises(AlreadyExistsError):
        obstore.put(store, key, b"second", mode="create")
    assert bytes(obstore.get(store, key).bytes()) == b"first"


def test_the_storage_options_serve_deltalake(s3_server: S3Server, s3_url: str) -> None:
    for _ in range(2):
        write_deltalake(s3_url, pa.table({"n": [1, 2]}), mode="append", storage_options=s3_server.storage_options)
    assert DeltaTable(s3_url, storage_options=s3_server.storage_options).to_pyarrow_table().num_rows == 4


def test_the_proxy_passes_everything_on(s3_server: S3Server, s3_proxy: FaultProxy, s3_url: str, key: str) -> None:
    options = s3_server.options_for(s3_proxy.endpoint)
    write_deltalake(s3_url, pa.table({"n": list(range(100_000))}), storage_options=options)
    assert DeltaTable(s3_url, storage_options=options).to_pyarrow_table().num_rows == 100_000
    store = s3_server.client(s3_proxy.endpoint)
    body = bytes(range(256)) * 4096
    obstore.put(store, key, body)
    assert bytes(obstore.get(store, key).bytes()) == body
    assert obstore.head(store, key)["size"] == len(body)


def test_a_lost_reply_leaves_the_object_there(s3_server: S3Server, s3_proxy: FaultProxy, key: str) -> None:
    s3_proxy.lose_next_put_reply(key)
    with pytest.raises(BaseError):
        obstore.put(s3_server.client(s3_proxy.endpoint), key, b"mine", mode="create", use_multipart=False)
    assert key in s3_proxy.wait_until_lost()
    assert bytes(obstore.get(s3_server.client(), key).bytes()) == b"mine"


def test_a_resent_create_meets_its_own_object(s3_server: S3Server, s3_proxy: FaultProxy, key: str) -> None:
    """Why `AlreadyExists` says nothing about whose object it is."""
    s3_proxy.lose_next_put_reply(key)
    with pytest.raises(AlreadyExistsError):
        obstore.put(s3_server.client(s3_proxy.endpoint, retries=3), key, b"mine", mode="create", use_multipart=False)
    assert bytes(obstore.get(s3_server.client(), key).bytes()) == b"mine"


def test_only_the_named_put_is_lost(s3_server: S3Server, s3_proxy: FaultProxy, key: str) -> None:
    s3_proxy.lose_next_put_reply(key)
    store = s3_server.client(s3_proxy.endpoint)
    obstore.put(store, f"{uuid.uuid4().hex}/other", b"passes")
    with pytest.raises(BaseError):
        obstore.put(store, key, b"lost", use_multipart=False)
    obstore.put(store, key, b"passes again", use_multipart=False)


def test_a_silent_server_never_answers_and_speaks_again(s3_server: S3Server, s3_proxy: FaultProxy, key: str) -> None:
    s3_proxy.fall_silent()
    with pytest.raises(BaseError):
        obstore.put(s3_server.client(s3_proxy.endpoint, timeout_s=1), key, b"never sent", use_multipart=False)
    s3_proxy.speak_again()
    store = s3_server.client(s3_proxy.endpoint)
    obstore.put(store, key, b"sent", mode="create", use_multipart=False)
    assert bytes(obstore.get(store, key).bytes()) == b"sent"


def test_a_killed_server_comes_back_with_its_data(s3_server: S3Server, key: str) -> None:
    store = s3_server.client()
    obstore.put(store, key, b"kept")
    first = s3_server.pid
    s3_server.restart()
    assert s3_server.pid != first
    assert bytes(obstore.get(store, key).bytes()) == b"kept"


def test_a_paused_server_goes_on_when_resumed(s3_server: S3Server, key: str) -> None:
    s3_server.pause()
    try:
        with pytest.raises(BaseError):
            obstore.put(s3_server.client(timeout_s=1), key, b"maybe", use_multipart=False)
    finally:
        s3_server.resume()
    obstore.put(s3_server.client(), key, b"now", use_multipart=False)
