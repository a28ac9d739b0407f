"""A model small enough to make on the spot: random weights, a real tokenizer, a ChatML template.

The weights are drawn wider than a Llama's usual 0.02 so that the next-token distribution is far from flat: a wrong
adapter, position or temperature then shows in the log-probabilities.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

START, END = "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 512
CONTEXT_LENGTH = 256

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

CORPUS = [
    "system user assistant You are a helpful assistant. What is the sum of 12 and 34? The answer is 46.",
    "Write the word upside down, then count its letters. Reply with a number only, no other text.",
    "The quick brown fox jumps over the lazy dog while seven wizards quietly mix a jar of vexing potions.",
    *(f"What is {a} + {b}? It is {a + b}." for a in range(40) for b in range(40)),
]


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most 512 tokens; eos and pad are ``<|im_end|>``. Encodes any text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, pad_token=END)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_tiny_model(folder: Path, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> Path:
    """Write a random Llama (2 layers, hidden 64) with its tokenizer into ``folder`` as safetensors; returns ``folder``.

    Head size 32 is the smallest vLLM's CPU attention takes; two key-value heads for four query heads exercise
    grouped-query attention. The same seed gives the same weights.
    """
    tokenizer = make_tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=CONTEXT_LENGTH,
        initializer_range=0.3,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    model.to(dtype=dtype).save_pretrained(folder)  # type: ignore[call-arg]
    tokenizer.save_pretrained(folder)
    return folder
