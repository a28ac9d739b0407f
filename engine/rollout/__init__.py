"""Rollout: sampling completions from the base model and many LoRA adapters at once, with vLLM."""
