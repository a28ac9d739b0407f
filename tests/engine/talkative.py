"""A tiny model that ends its turns and calls tools, made without training.

Whole sentences are tokens of its own, and its blocks add nothing to the embeddings before an adapter does: the next
token follows from the last one. After the opening of its turn it calls the calculator or guesses a number; after that
its turn ends.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from engine.chat import ChatRenderer
from engine.spec import Message
from engine.tiny import make_tiny_model, make_tokenizer

CONTEXT = 1024
CALLS = [
    f'<tool_call>{{"name": "calculator", "arguments": {{"expression": "{a}+3"}}}}</tool_call>' for a in range(1, 5)
]
GUESSES = [f"It is {number}." for number in range(10)]
LIKELY = 12.0
"""Logit of what it says; that of anything else is near 0."""


def make_talkative_model(folder: Path) -> Path:
    """Write it into ``folder``; returns ``folder``. Two replies in three are one of ``CALLS``, the others one of
    ``GUESSES``."""
    make_tiny_model(folder)
    tokenizer = make_tokenizer()
    tokenizer.add_tokens([*CALLS, *GUESSES])
    tokenizer.save_pretrained(folder)
    calls, guesses = (tokenizer.convert_tokens_to_ids(texts) for texts in (CALLS, GUESSES))
    opening = ChatRenderer(folder).prompt_ids([Message(role="user", content="?")])[-1]

    config = AutoModelForCausalLM.from_pretrained(folder).config
    config.vocab_size, config.max_position_embeddings = len(tokenizer), CONTEXT
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    size = config.hidden_size
    begin, end = torch.eye(size)[:2]
    with torch.no_grad():
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        model.model.embed_tokens.weight[opening] = begin
        model.model.embed_tokens.weight[calls + guesses] = end
        head = model.lm_head.weight.mul_(0.1)
        # A norm makes any vector as long as the square root of its size.
        head[guesses] += begin * LIKELY / size**0.5
        head[calls] += begin * (LIKELY + math.log(2 * len(guesses) / len(calls))) / size**0.5
        head[tokenizer.eos_token_id] += end * LIKELY / size**0.5
    model.save_pretrained(folder)
    return folder
