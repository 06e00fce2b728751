"""Azure's and Mooncake's traces: read as published, refused by line, and alike for every block size."""

from __future__ import annotations

import statistics
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.sim.simulator import simulate
from octavo.sim.system import System
from octavo.traces.azure import read_azure
from octavo.traces.catalogue import workload
from octavo.traces.mooncake import MooncakeRecord, mooncake_requests, read_mooncake
from support.paths import TESTS
from support.simulations import LinearCost

CODE, CONV = TESTS / "data" / "azure2023_code_300.csv", TESTS / "data" / "azure2023_conv_300.csv"
MOONCAKE = TESTS / "data" / "mooncake_conversation_400.jsonl.gz"


def test_azure_as_published() -> None:
    records = read_azure(CODE)
    assert len(records) == 300
    assert records[:2] == [(0.0, 4808, 10), (pytest.approx(0.052), 3180, 8)]
    assert records[-1].time_s == pytest.approx(216.838, abs=1e-3)
    assert statistics.mean(record.num_input_tokens for record in records) == pytest.approx(2091.76, abs=0.01)
    assert statistics.mean(record.num_output_tokens for record in read_azure(CONV)) == pytest.approx(256.23, abs=0.01)


def test_azure_arrives_as_recorded_or_at_another_rate() -> None:
    as_recorded = workload("azure-conv", duration_s=50.0, trace=CONV)
    records = [record for record in read_azure(CONV) if record.time_s < 50.0]
    assert [request.arrival_s for request in as_recorded] == [record.time_s for record in records]
    assert [(len(r.token_ids), r.num_output_tokens) for r in as_recorded] == [record[1:] for record in records]
    assert len(workload("azure-conv", 10.0, 100.0, trace=CONV)) == pytest.approx(1000, rel=0.1)
    poisson = workload("azure-conv", 10.0, 30.0, trace=CONV, arrivals="poisson")
    assert len({r.arrival_s for r in poisson} & {r.arrival_s for r in as_recorded}) == 0


def test_azure_is_put_in_order_and_may_name_a_zone(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:03.5+00:00,3,4\n2024-05-10 00:00:01+00:00,1,2\n"
    )
    notes: list[str] = []
    assert read_azure(path, notes.append) == [(0.0, 1, 2), (2.5, 3, 4)]
    assert notes == ["trace.csv, line 3 is earlier than the line before it: the trace was put in order of time"]


HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("a,b\n1,2\n", "line 1: columns = 'a,b'"),
        (HEADER, "line 2: line = ''"),
        (HEADER + "2023-11-16 18:17:03,1\n", "line 2: line = "),
        (HEADER + "yesterday,1,2\n", "line 2: TIMESTAMP = 'yesterday'"),
        (HEADER + "2023-11-16 18:17:03,0,2\n", "line 2: ContextTokens = '0'"),
        (HEADER + "2023-11-16 18:17:03,1,x\n", "line 2: GeneratedTokens = 'x'"),
    ],
)
def test_a_bad_azure_trace_is_refused_by_line(tmp_path: Path, text: str, where: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_azure(path)
    assert where in str(caught.value)


def hits(records: list[MooncakeRecord]) -> int:
    """Tokens of prompts that a cache without a limit holds already, told from the ids alone; whole blocks only, and
    the last token of a prompt is always computed."""
    seen: set[int] = set()
    total = 0
    for record in records:
        fresh = next((i for i, block in enumerate(record.hash_ids) if block not in seen), len(record.hash_ids))
        total += min(512 * fresh, record.input_length - 1)
        seen.update(record.hash_ids)
    return total


def test_mooncake_as_published() -> None:
    records = read_mooncake(MOONCAKE)
    assert len(records) == 400
    assert records[0] == MooncakeRecord(0, 6758, 500, list(range(14)))
    assert statistics.mean(record.input_length for record in records) == pytest.approx(14276.3, abs=0.1)
    assert sum(len(record.hash_ids) for record in records) == 11349


def test_mooncake_is_put_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD.replace(": 0,", ": 9,") + GOOD + GOOD.replace(": 0,", ": 5,"))
    notes: list[str] = []
    assert [record.timestamp for record in read_mooncake(path, notes.append)] == [0, 5, 9]
    assert notes == ["trace.jsonl, line 2 is earlier than the line before it: the trace was put in order of time"]
    read_mooncake(MOONCAKE, lambda note: pytest.fail(note))


@pytest.mark.parametrize("block_size", [16, 64, 256])
def test_mooncakes_prompts_hit_alike_with_every_block_size(block_size: int) -> None:
    """Prompts of at most 3,000 tokens with answers of one, one after the other: each finds what came before it."""
    records = [
        msgspec.structs.replace(record, output_length=1)
        for record in read_mooncake(MOONCAKE)
        if record.input_length <= 3000
    ]
    requests = mooncake_requests(records, [100.0 * i for i in range(len(records))], Random(0))
    assert len(requests) > 50
    system = System(
        num_blocks=300_000 // block_size, block_size=block_size, max_model_len=8192, enable_prefix_caching=True
    )
    result = simulate(system, LinearCost(), requests)
    assert result.num_prefix_hit_tokens == hits(records) > 0


def test_mooncakes_prompts_share_what_their_ids_share() -> None:
    records = [
        MooncakeRecord(0, 1300, 5, [90, 80, 70]),
        MooncakeRecord(1, 1024, 6, [90, 80]),
        MooncakeRecord(2, 600, 7, [90, 60]),
    ]
    requests = mooncake_requests(records, [0.0] * 6, Random(0))
    a, b, c, again, *_ = (request.token_ids for request in requests)
    assert [len(a), len(b), len(c)] == [1300, 1024, 600]
    assert a[:1024] == b
    assert a[:512] == c[:512]
    assert a[512] != c[512]
    assert again[0] != a[0], "a second pass through the trace is no hit of the first"
    assert [request.num_output_tokens for request in requests] == [5, 6, 7] * 2


def test_mooncake_by_name() -> None:
    requests = workload("mooncake", duration_s=60.0, trace=MOONCAKE, max_model_len=4096)
    assert requests
    assert max(len(request.token_ids) + request.num_output_tokens for request in requests) <= 4096
    assert requests == workload("mooncake", duration_s=60.0, trace=MOONCAKE, max_model_len=4096)
    with pytest.raises(ConfigError, match="max_model_len"):
        workload("mooncake", trace=MOONCAKE, max_model_len=10)


GOOD = '{"timestamp": 0, "input_length": 513, "output_length": 5, "hash_ids": [0, 1]}\n'


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("[1, 2]", "line 2: record = '[1, 2]'"),
        ('{"timestamp": 0}', "line 2: record = "),
        (GOOD.replace("513", "1.5"), "line 2: record = "),
        (GOOD.replace("513", "0"), "line 2: input_length = 0"),
        (GOOD.replace("5,", "-5,"), "line 2: output_length = -5"),
        (GOOD.replace(": 0,", ": -1,"), "line 2: timestamp = -1"),
        (GOOD.replace("513", "512"), "line 2: hash_ids = [0, 1]: must be 1 ids"),
        (GOOD.replace("513", "99999999999"), "line 2: input_length = 99999999999"),
    ],
)
def test_a_bad_mooncake_trace_is_refused_by_line(tmp_path: Path, line: str, where: str) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(GOOD + line)
    with pytest.raises(ConfigError) as caught:
        read_mooncake(path)
    assert where in str(caught.value)


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=80)
    | st.text('{}[]":,0123456789 timestampinputlenghoashids_', max_size=80).map(str.encode)
)
@pytest.mark.parametrize("reader", [read_azure, read_mooncake])
def test_any_trace_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, reader: object, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.trace"
    path.write_bytes(content)
    try:
        assert reader(path)  # type: ignore[operator]
    except ConfigError as error:
        assert str(path) in str(error)
