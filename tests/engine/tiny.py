"""The tiny random model (``engine.tiny``) under the name tests know it by."""

from engine.tiny import CONTEXT_LENGTH, VOCAB_SIZE, make_tiny_model, make_tokenizer

__all__ = ["CONTEXT_LENGTH", "VOCAB_SIZE", "make_tiny_model", "make_tokenizer"]
