"""/v1/files and /v1/batches: the real client, killed servers, tenants, limits."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from support.server_process import ServerProcess

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "Tell me a story."}]


def lines(count: int, max_tokens: int = 6) -> list[dict[str, Any]]:
    return [
        {
            "custom_id": f"line-{i}",
            "method": "POST",
            "url": COMPLETIONS,
            "body": {"model": "tiny", "prompt": f"Once upon a time {i}", "seed": i, "max_tokens": max_tokens},
        }
        for i in range(count)
    ]


def jsonl(rows: list[Any]) -> bytes:
    return "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows).encode()


def rows_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(line) for line in client.files.content(file_id).text.splitlines()]


def wait(client: OpenAI, batch_id: str, *wanted: str, limit_s: float = 60) -> Any:
    begin = time.monotonic()
    while (batch := client.batches.retrieve(batch_id)).status not in wanted:
        assert time.monotonic() - begin < limit_s, batch
        assert batch.status in ("validating", "in_progress", "finalizing", "cancelling"), batch
        time.sleep(0.02)
    return batch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("files") / "of" / "server"


FLAGS = ("--num-blocks", "200", "--max-file-bytes", "200K", "--max-files-bytes", "1M")


@pytest.fixture(scope="module")
def keeper(start_server: Any, folder: Path) -> ServerProcess:
    """A server that keeps files."""
    server: ServerProcess = start_server("--files-dir", str(folder), *FLAGS)
    return server


@pytest.fixture(scope="module")
def keeping(keeper: ServerProcess) -> Any:
    with OpenAI(base_url=f"{keeper.url}/v1", api_key="unused", max_retries=0) as client:
        yield client


def start(client: OpenAI, rows: list[Any], endpoint: Any = COMPLETIONS, **more: Any) -> Any:
    file = client.files.create(file=("in.jsonl", jsonl(rows)), purpose="batch")
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def test_a_file_comes_back_as_it_was(keeping: OpenAI) -> None:
    content = bytes(range(256)) * 300
    file = keeping.files.create(file=("naïve name.bin", content), purpose="user_data")
    assert (file.bytes, file.filename, file.purpose, file.object) == (
        len(content),
        "naïve name.bin",
        "user_data",
        "file",
    )
    assert keeping.files.retrieve(file.id) == file
    assert keeping.files.content(file.id).read() == content
    assert file.id in [each.id for each in keeping.files.list(purpose="user_data")]
    assert file.id not in [each.id for each in keeping.files.list(purpose="batch")]
    assert keeping.files.delete(file.id).deleted
    for gone in (keeping.files.retrieve, keeping.files.content, keeping.files.delete):
        with pytest.raises(openai.NotFoundError):
            gone(file.id)


def test_lists_have_pages(keeping: OpenAI) -> None:
    made = [keeping.files.create(file=(f"{i}", b"x"), purpose="evals").id for i in range(5)]
    pages = list(keeping.files.list(purpose="evals", limit=2, order="asc").iter_pages())
    assert [len(page.data) for page in pages] == [2, 2, 1] and [page.has_more for page in pages] == [True, True, False]
    assert sorted(each.id for page in pages for each in page.data) == sorted(made)
    for file_id in made:
        keeping.files.delete(file_id)


def test_a_file_ends_when_it_was_said_to(keeping: OpenAI) -> None:
    file = keeping.files.create(
        file=("x", b"x"), purpose="batch", expires_after={"anchor": "created_at", "seconds": 3600}
    )
    assert file.expires_at == file.created_at + 3600
    keeping.files.delete(file.id)


def test_a_batch_is_answered_as_the_routes_answer(keeper: ServerProcess, keeping: OpenAI) -> None:
    rows = lines(12)
    rows[3]["body"]["temperature"] = -1
    batch = start(keeping, rows, metadata={"who": "test"})
    assert batch.metadata == {"who": "test"} and batch.status in ("validating", "in_progress")
    done = wait(keeping, batch.id, "completed")
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (12, 11, 1)
    assert done.in_progress_at and done.finalizing_at and done.completed_at and done.errors is None
    answers = {row["custom_id"]: row for row in rows_of(keeping, done.output_file_id)}
    assert len(answers) == 11
    for row in rows:
        if row["custom_id"] in answers:
            direct = keeper.post(COMPLETIONS, row["body"]).body
            assert answers[row["custom_id"]]["response"]["body"]["choices"] == direct["choices"]
    [failed] = rows_of(keeping, done.error_file_id)
    assert failed["custom_id"] == "line-3" and failed["response"]["status_code"] == 400
    assert failed["response"]["body"]["error"]["param"] == "temperature"
    assert keeping.batches.list(limit=1).data[0].id == batch.id
    assert keeping.files.retrieve(done.output_file_id).purpose == "batch_output"


def test_the_async_client(keeper: ServerProcess) -> None:
    async def main() -> None:
        async with AsyncOpenAI(base_url=f"{keeper.url}/v1", api_key="unused", max_retries=0) as client:
            row = {"custom_id": "a", "method": "POST", "url": CHAT, "body": {"messages": MESSAGES, "max_tokens": 3}}
            file = await client.files.create(file=io.BytesIO(jsonl([row])), purpose="batch")
            batch = await client.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")
            while batch.status != "completed":
                batch = await client.batches.retrieve(batch.id)
            content = await client.files.content(batch.output_file_id or "")
            assert json.loads(content.text)["response"]["body"]["object"] == "chat.completion"

    asyncio.run(main())


@pytest.mark.parametrize(
    ("rows", "code", "line"),
    [
        ([], "empty_file", None),
        (["nonsense"], "invalid_json", 1),
        ([lines(1)[0], lines(1)[0]], "duplicate_custom_id", 2),
        ([{**lines(1)[0], "url": CHAT}], "invalid_line", 1),
        (["", {**lines(1)[0], "method": "GET"}], "invalid_line", 2),
        ([{"custom_id": "x"}], "invalid_line", 1),
    ],
)
def test_a_file_that_is_no_batch_fails_before_anything_runs(
    keeper: ServerProcess, keeping: OpenAI, rows: list[Any], code: str, line: int | None
) -> None:
    before = keeper.metric("octavo:request_success_total")
    failed = wait(keeping, start(keeping, rows).id, "failed")
    assert failed.errors is not None and failed.errors.data is not None
    assert (failed.errors.data[0].code, failed.errors.data[0].line) == (code, line)
    assert failed.output_file_id is None and failed.failed_at
    assert keeper.metric("octavo:request_success_total") == before


def test_cancelling_keeps_what_is_finished(keeping: OpenAI) -> None:
    rows = [*lines(4, 2), *({**row, "custom_id": f"long-{i}"} for i, row in enumerate(lines(400, 200)))]
    batch = start(keeping, rows)
    other = start(keeping, lines(3))
    while keeping.batches.retrieve(batch.id).request_counts.completed < 4:  # type: ignore[union-attr]
        time.sleep(0.02)
    with pytest.raises(openai.ConflictError):
        keeping.files.delete(batch.input_file_id)
    assert keeping.batches.cancel(other.id).status == "cancelled", "its turn has not come"
    assert keeping.batches.cancel(batch.id).status == "cancelling"
    ended = wait(keeping, batch.id, "cancelled", limit_s=5)
    assert {f"line-{i}" for i in range(4)} <= {row["custom_id"] for row in rows_of(keeping, ended.output_file_id)}
    assert ended.request_counts.completed < 404 and ended.cancelled_at
    with pytest.raises(openai.BadRequestError):
        keeping.batches.cancel(batch.id)
    keeping.files.delete(batch.input_file_id)


def create(**changes: Any) -> dict[str, Any]:
    return {"input_file_id": "file-" + "0" * 32, "endpoint": COMPLETIONS, "completion_window": "24h", **changes}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        (create(), 404, "input_file_id"),
        (create(input_file_id="../../etc/passwd"), 404, "input_file_id"),
        (create(input_file_id=5), 400, "input_file_id"),
        (create(endpoint="/v1/embeddings"), 400, "endpoint"),
        (create(endpoint="/v1/batches"), 400, "endpoint"),
        (create(endpoint=None), 400, "endpoint"),
        (create(completion_window="1h"), 400, "completion_window"),
        (create(metadata={"a": 5}), 400, 'metadata["a"]'),
        (create(metadata={"a" * 65: "x"}), 400, "metadata." + "a" * 64),
        (create(metadata={str(i): "x" for i in range(17)}), 400, "metadata"),
        (create(output_expires_after={"anchor": "x", "seconds": 3600}), 400, "output_expires_after.anchor"),
        (create(output_expires_after={"anchor": "created_at", "seconds": 1}), 400, "output_expires_after.seconds"),
        ({}, 400, "input_file_id"),
    ],
)
def test_bad_batches_are_refused_by_name(keeper: ServerProcess, body: Any, status: int, param: str) -> None:
    reply = keeper.post("/v1/batches", body)
    assert reply.status == status and reply.error["param"] == param


def upload(server: ServerProcess, *parts: tuple[str, bytes], kind: str = "multipart/form-data; boundary=b") -> Any:
    body = b"".join(b"--b\r\nContent-Disposition: form-data; %b\r\n\r\n%b\r\n" % (h.encode(), d) for h, d in parts)
    return server.post("/v1/files", body + b"--b--\r\n", {"Content-Type": kind})


FILE = ('name="file"; filename="x"', b"content")


@pytest.mark.parametrize(
    ("parts", "status", "param"),
    [
        ([FILE], 400, "purpose"),
        ([FILE, ('name="purpose"', b"fun")], 400, "purpose"),
        ([FILE, ('name="purpose"', b"batch"), ('name="purpose"', b"batch")], 400, "purpose"),
        ([('name="purpose"', b"batch")], 400, "file"),
        ([('name="file"', b"no file name"), ('name="purpose"', b"batch")], 400, "file"),
        ([FILE, FILE, ('name="purpose"', b"batch")], 400, "file"),
        ([FILE, ('name="purpose"', b"b" * 5000)], 400, "purpose"),
        ([FILE, ('name="purpose"', b"batch"), ('name="expires_after[seconds]"', b"9")], 400, "expires_after.anchor"),
        ([('name="file"; filename="x"', b"x" * 210_000), ('name="purpose"', b"batch")], 413, None),
        ([('name="file"; filename="x"', b"x" * 300_000), ('name="purpose"', b"batch")], 413, None),
    ],
)
def test_bad_uploads_are_refused_and_leave_nothing(
    keeper: ServerProcess, folder: Path, parts: list[tuple[str, bytes]], status: int, param: str | None
) -> None:
    before = sorted(path.name for path in folder.iterdir())
    reply = upload(keeper, *parts)
    assert reply.status == status and reply.error["param"] == param
    assert sorted(path.name for path in folder.iterdir()) == before


def test_other_bodies_are_no_uploads(keeper: ServerProcess) -> None:
    assert keeper.post("/v1/files", {"file": "x"}).status == 415
    assert upload(keeper, FILE, kind="multipart/form-data").status == 415
    assert keeper.post("/v1/files", b"--b\r\n", {"Content-Type": "multipart/form-data; boundary=b"}).status == 400


def test_all_files_together_have_a_limit(keeper: ServerProcess, keeping: OpenAI) -> None:
    big = ('name="file"; filename="big"', b"x" * 200_000)
    made = []
    while (reply := upload(keeper, big, ('name="purpose"', b"evals"))).status == 200:
        made.append(reply.body["id"])
        assert len(made) < 6
    assert reply.status == 507 and reply.error["code"] == "storage_full"
    for file_id in made:
        keeping.files.delete(file_id)
    assert upload(keeper, big, ('name="purpose"', b"evals")).status == 200


@pytest.mark.parametrize(
    ("path", "param"),
    [
        ("/v1/files?limit=0", "limit"),
        ("/v1/files?limit=x", "limit"),
        ("/v1/files?order=up", "order"),
        ("/v1/files?after=file-1", "after"),
        ("/v1/batches?limit=101", "limit"),
        ("/v1/batches?after=", "after"),
    ],
)
def test_bad_pages_are_refused(keeper: ServerProcess, path: str, param: str) -> None:
    reply = keeper.get(path)
    assert reply.status == 400 and reply.error["param"] == param


@pytest.mark.parametrize("file_id", ["file-1", "..", "%2e%2e%2flock", "lock", "file-" + "0" * 32, "batch_" + "0" * 32])
def test_ids_that_are_none(keeper: ServerProcess, file_id: str) -> None:
    for path in (f"/v1/files/{file_id}", f"/v1/files/{file_id}/content", f"/v1/batches/{file_id}"):
        assert keeper.get(path).status == 404


def test_a_server_without_a_folder_says_so(server: ServerProcess) -> None:
    for method, path in (
        ("GET", "/v1/files"),
        ("GET", "/v1/batches"),
        ("GET", "/v1/files/x/content"),
        ("DELETE", "/v1/files/x"),
        ("POST", "/v1/batches/x/cancel"),
    ):
        reply = server.request(method, path)
        assert (
            reply.status == 403
            and reply.error["code"] == "files_not_configured"
            and "--files-dir" in reply.error["message"]
        )
    assert upload(server, FILE).status == 403


def test_tenants_have_files_of_their_own(start_server: Any, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("alice sk-aaaaaaaaaaaaaaaa\nbob sk-bbbbbbbbbbbbbbbb\n")
    server = start_server("--files-dir", str(tmp_path / "kept"), "--api-key-file", str(keys), "--num-blocks", "100")

    def client(key: str) -> OpenAI:
        return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)

    with client("sk-aaaaaaaaaaaaaaaa") as alice, client("sk-bbbbbbbbbbbbbbbb") as bob:
        batch = start(alice, lines(2))
        done = wait(alice, batch.id, "completed")
        assert alice.files.list().data and alice.batches.list().data
        assert not bob.files.list().data and not bob.batches.list().data
        for file_id in (batch.input_file_id, done.output_file_id):
            for forbidden in (bob.files.retrieve, bob.files.content, bob.files.delete):
                with pytest.raises(openai.NotFoundError):
                    forbidden(file_id)
        for hidden in (bob.batches.retrieve, bob.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                hidden(batch.id)
        with pytest.raises(openai.NotFoundError):
            bob.batches.create(input_file_id=batch.input_file_id, endpoint=COMPLETIONS, completion_window="24h")
        stats = server.get("/v1/kv/stats", {"Authorization": "Bearer sk-aaaaaaaaaaaaaaaa"}).body
        assert [account["tenant"] for account in stats["accounts"]] == ["alice"], "who asked for it pays for it"
        assert stats["accounts"][0]["num_prefix_query_tokens"] > 0


def test_one_folder_has_one_server(start_server: Any, keeper: ServerProcess, folder: Path) -> None:
    second = start_server("--files-dir", str(folder), "--num-blocks", "40", ready=False)
    assert second.wait_exit(60) == 2
    assert "a folder that no other server uses" in second.log.read_text()


def test_a_killed_servers_batches_go_on_and_no_line_runs_twice(start_server: Any, tmp_path: Path) -> None:
    """Killed in the midst of a batch, twice; the third server ends it."""
    flags = ("--files-dir", str(tmp_path / "kept"), "--num-blocks", "200", "--max-num-seqs", "4")
    rows = lines(120, 150)
    for row in rows:
        row["body"]["ignore_eos"] = True
    server = start_server(*flags)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        batch_id = start(client, rows).id
        waiting_id = start(client, [{**row, "custom_id": "later"} for row in lines(1)]).id
    early: dict[str, str] = {}
    for _ in range(2):
        with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
            while client.batches.retrieve(batch_id).request_counts.completed < len(early) + 8:  # type: ignore[union-attr]
                time.sleep(0.01)
        server.signal(signal.SIGKILL)
        server.wait_exit()
        [output] = [
            path
            for path in (tmp_path / "kept").glob("*.data")
            if b'"custom_id":"line-0","response"' in path.read_bytes()
        ]
        with output.open("ab") as torn:
            torn.write(b'{"id":"batch_req_1","custom_id":"line-5')
        early = {}
        for text in output.read_bytes().split(b"\n")[:-1]:
            early[json.loads(text)["custom_id"]] = json.loads(text)["id"]
        assert 8 <= len(early) < 120
        server = start_server(*flags)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        done = wait(client, batch_id, "completed")
        assert done.request_counts.completed == done.request_counts.total == 120
        answers = rows_of(client, done.output_file_id)
        assert sorted(row["custom_id"] for row in answers) == sorted(row["custom_id"] for row in rows)
        ids = {row["custom_id"]: row["id"] for row in answers}
        assert {custom_id: ids[custom_id] for custom_id in early} == early, "finished lines are kept, not run again"
        assert wait(client, waiting_id, "completed").request_counts.completed == 1
        direct = server.post(COMPLETIONS, rows[30]["body"]).body["choices"]
        assert next(row for row in answers if row["custom_id"] == "line-30")["response"]["body"]["choices"] == direct


def test_a_drain_leaves_the_rest_for_the_next_server(start_server: Any, tmp_path: Path) -> None:
    flags = ("--files-dir", str(tmp_path / "kept"), "--num-blocks", "200", "--max-num-seqs", "4")
    server = start_server(*flags)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        batch_id = start(client, lines(60, 60)).id
        while not client.batches.retrieve(batch_id).request_counts.completed:  # type: ignore[union-attr]
            time.sleep(0.01)
    server.signal(signal.SIGTERM)
    assert server.wait_exit() == 0
    assert "Error" not in server.log.read_text()
    server = start_server(*flags)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        done = wait(client, batch_id, "completed")
        assert done.request_counts.completed == 60 and len(rows_of(client, done.output_file_id)) == 60


def test_what_is_not_run_within_the_window_is_said_so(start_server: Any, tmp_path: Path) -> None:
    """The record is aged while no server runs."""
    flags = ("--files-dir", str(tmp_path / "kept"), "--num-blocks", "200", "--max-num-seqs", "4")
    server = start_server(*flags)
    rows = lines(60, 150)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        batch_id = start(client, rows).id
        while not client.batches.retrieve(batch_id).request_counts.completed:  # type: ignore[union-attr]
            time.sleep(0.01)
    server.signal(signal.SIGKILL)
    server.wait_exit()
    record = tmp_path / "kept" / f"{batch_id}.json"
    stored = json.loads(record.read_text())
    stored["batch"]["expires_at"] -= 25 * 3600
    record.write_text(json.dumps(stored))
    server = start_server(*flags)
    with OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        ended = wait(client, batch_id, "expired")
        answers, errors = rows_of(client, ended.output_file_id), rows_of(client, ended.error_file_id)
    assert sorted(row["custom_id"] for row in [*answers, *errors]) == sorted(row["custom_id"] for row in rows)
    assert {row["error"]["code"] for row in errors} == {"batch_expired"} and ended.expired_at
