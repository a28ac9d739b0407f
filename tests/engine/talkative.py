"""A tiny model that ends its turns and calls tools: the random one, tuned for some seconds on conversations."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from engine.chat import ChatRenderer
from engine.environments.protocol import TurnMessage
from engine.environments.tools.environment import instructions
from engine.spec import Message, Tools
from engine.tiny import make_tiny_model

CONTEXT = 1024
STEPS = 150


def make_talkative_model(folder: Path) -> Path:
    """Write it into ``folder``. Asked for a sum it calls the calculator, guesses a number, or does one after another;
    what it says is seldom right."""
    make_tiny_model(folder)
    renderer, tokenizer = ChatRenderer(folder), AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.config.max_position_embeddings = CONTEXT
    rng = random.Random(0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
        for _ in range(STEPS):
            ids, labels = _batch(rng, renderer, tokenizer)
            model(input_ids=ids, labels=labels).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def _batch(rng: random.Random, renderer: ChatRenderer, tokenizer) -> tuple[torch.Tensor, torch.Tensor]:
    with_tools = rng.random() < 0.6  # all or none of a batch: what the tools are is long
    chats = [_chat(rng, renderer, tokenizer, with_tools) for _ in range(4 if with_tools else 16)]
    longest = max(len(ids) for ids, _ in chats)
    ids = torch.full((len(chats), longest), tokenizer.eos_token_id)
    labels = torch.full((len(chats), longest), -100)
    for row, (chat, mask) in enumerate(chats):
        ids[row, : len(chat)] = torch.tensor(chat)
        labels[row, : len(chat)] = torch.tensor([token if own else -100 for token, own in zip(chat, mask, strict=True)])
    return ids, labels


def _chat(rng: random.Random, renderer: ChatRenderer, tokenizer, with_tools: bool) -> tuple[list[int], list[bool]]:
    """Token ids, and which of them are the model's."""
    a, b = rng.randrange(6), rng.randrange(6)
    question = [Message(role="user", content=f"What is {a} + {b}?")]
    ids = renderer.prompt_ids(question, "", instructions(Tools()) if with_tools else "")
    mask = [False] * len(ids)
    for turn in range(4):
        if with_tools and rng.random() < (0.7, 0.4, 0.2, 0)[turn]:
            call = f'{{"name": "calculator", "arguments": {{"expression": "{a}+{rng.randrange(6)}"}}}}'
            said, heard = f"<tool_call>{call}</tool_call>", TurnMessage("tool", str(a + b))
        else:
            said, heard = f"It is {rng.randrange(11)}.", TurnMessage("user", "wrong")
        reply = [*tokenizer.encode(said, add_special_tokens=False), tokenizer.eos_token_id]
        ids, mask = ids + reply, mask + [True] * len(reply)
        if heard.role == "tool" or (not with_tools and rng.random() < 0.6):
            delta = renderer.turn_ids([heard])
            ids, mask = ids + delta, mask + [False] * len(delta)
        else:
            break
    return ids, mask
