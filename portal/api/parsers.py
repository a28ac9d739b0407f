"""Bodies as JSON, no larger than ``DATA_UPLOAD_MAX_MEMORY_SIZE``: what is parsed has to fit into memory."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import IO, Any

from django.conf import settings
from django.core.exceptions import RequestDataTooBig
from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class LimitedJSONParser(JSONParser):
    """Refuses what is too large with 413, and what is nested too deeply with 400."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
        body = stream.read(limit + 1)
        if len(body) > limit:
            raise RequestDataTooBig("The JSON body is too large.")
        try:
            return super().parse(io.BytesIO(body), media_type, parser_context)
        except RecursionError:
            raise ParseError("JSON parse error - it is nested too deeply.") from None
