"""What every model of the contract shares."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"


class Contract(BaseModel):
    """Base of every contract model: immutable, unknown fields and numbers that are not finite refused."""

    # With the docstrings under fields as their descriptions, a form or a schema explains what it asks for.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True)
