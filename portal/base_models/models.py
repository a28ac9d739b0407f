"""The base models the operator offers: ``engine.spec.BaseModelSpec`` as rows."""

import pydantic
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import RegexValidator
from django.db import models

from engine.spec import NAME_PATTERN, BaseModelSpec

SPEC_FIELDS = tuple(BaseModelSpec.model_fields)


class BaseModel(models.Model):
    """A frozen causal LM. One pool of the engine serves each."""

    class Source(models.TextChoices):
        BUNDLED = "bundled", "Package that ships the weights"
        HUGGINGFACE = "huggingface", "Hugging Face hub"
        LOCAL = "local", "Folder on the engine"

    class Dtype(models.TextChoices):
        BFLOAT16 = "bfloat16"
        FLOAT16 = "float16"
        FLOAT32 = "float32"

    id = models.CharField(primary_key=True, max_length=64, validators=[RegexValidator(NAME_PATTERN)])
    source = models.CharField(max_length=20, choices=Source, default=Source.BUNDLED)
    location = models.CharField(max_length=500, help_text="Package name, Hugging Face repository or absolute folder.")
    revision = models.CharField(max_length=100, blank=True, help_text="Hugging Face revision; empty: the default.")
    context_length = models.PositiveIntegerField(help_text="Longest prompt plus completion, in tokens.")
    max_lora_rank = models.PositiveIntegerField(default=16, help_text="Serving slows down with it.")
    dtype = models.CharField(max_length=20, choices=Dtype, default=Dtype.BFLOAT16)
    enabled = models.BooleanField(default=True, help_text="Offered for new jobs.")
    description = models.TextField(blank=True)

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return self.id

    def clean(self) -> None:
        faults: dict[str, str] = {}
        try:
            self.to_spec()
        except pydantic.ValidationError as error:
            for item in error.errors():
                name = str(item["loc"][0]) if item["loc"] else NON_FIELD_ERRORS
                if getattr(self, name, "?") not in (None, ""):  # what is missing is said already
                    faults[name] = item["msg"].replace("Input should", "Must", 1)
        if self.source == self.Source.LOCAL and self.location and not self.location.startswith("/"):
            faults["location"] = "Must be an absolute folder on the engine, such as /models/name."
        if faults:
            raise ValidationError(faults)

    def to_spec(self) -> BaseModelSpec:
        return BaseModelSpec(**{name: getattr(self, name) for name in SPEC_FIELDS})
