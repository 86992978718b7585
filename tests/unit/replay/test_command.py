from pathlib import Path

import pytest

from gnomon.harness.clients.environment import ClientEnvironment
from gnomon.harness.nouns import ServerAddress
from gnomon.harness.replay.aiperf import render_argv, render_env
from gnomon.harness.replay.spec import ReplaySpec
from gnomon.harness.replay.tokenizer import TokenizerMissing, lay_out_tokenizer
from gnomon.harness.replay.traces import write_traces

CLIENT = ClientEnvironment("aiperf", Path("/env/bin/python"), Path("/env/bin"), "0" * 64, {})


def option(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_whole_set_is_replayed_by_sessions_at_a_fixed_concurrency(tmp_path: Path) -> None:
    spec = ReplaySpec(concurrency=2)
    traces = write_traces(spec.traces, tmp_path / "traces")
    server = ServerAddress("127.0.0.1", 8000, "nano")
    argv = render_argv(spec, server, traces, "local/tokenizer", CLIENT, tmp_path)
    assert option(argv, "--conversation-num") == "3"
    assert option(argv, "--concurrency") == "2"
    assert option(argv, "--extra-inputs") == "ignore_eos:true"
    assert option(argv, "--custom-dataset-type") == "weka_trace"
    assert option(argv, "--ui") == "none"
    assert "--request-count" not in argv
    assert "--api-key" not in argv


def test_the_client_is_offline_and_shares_nothing_between_runs(tmp_path: Path) -> None:
    env = render_env(ReplaySpec(), tmp_path)
    assert env["HF_HUB_OFFLINE"] == "1"
    assert env["HF_HOME"] == str(tmp_path / "hf")
    assert env["AIPERF_DATASET_MMAP_CACHE_ENABLED"] == "false"
    assert env["AIPERF_DATASET_WEKA_LIVE_ASSISTANT_RESPONSES"] == "false"


def test_a_tokenizer_is_laid_out_as_the_hub_cache_does_without_weights(tmp_path: Path) -> None:
    source = tmp_path / "model"
    source.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json", "config.json", "model.safetensors"):
        (source / name).write_text("{}")
    assert lay_out_tokenizer(source, tmp_path / "hf") == "local/tokenizer"
    repository = tmp_path / "hf" / "hub" / "models--local--tokenizer"
    revision = (repository / "refs" / "main").read_text()
    copied = {p.name for p in (repository / "snapshots" / revision).iterdir()}
    assert copied == {"tokenizer.json", "tokenizer_config.json"}


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerMissing, match=r"no tokenizer\.json"):
        lay_out_tokenizer(tmp_path, tmp_path / "hf")


def test_an_api_key_is_not_shown_by_the_address() -> None:
    assert "secret" not in repr(ServerAddress("h", 1, "m", "secret"))


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80/v1"), ("::1", "http://[::1]:80/v1")],
)
def test_an_address_is_a_url(host: str, url: str) -> None:
    assert ServerAddress(host, 80, "m").base_url == url
