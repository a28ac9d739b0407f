"""Forms for documents and tokens; what they may hold is the services' to say."""

from __future__ import annotations

import io
from typing import Any, BinaryIO

from django import forms

MAX_PASTED = 1_000_000
"""Characters; more is better uploaded as a file."""
EXAMPLE = '{"title": "Opening hours", "text": "The office is open from 8 to 17."}\n{"text": "Parking is free."}'


class DocumentsForm(forms.Form):
    """A file of documents, or pasted ones."""

    name = forms.CharField(
        max_length=100,
        label="Name",
        help_text="To find them in the new-job form.",
        error_messages={"required": "Give the documents a name."},
        widget=forms.TextInput(attrs={"placeholder": "handbook", "autocomplete": "off"}),
    )
    file = forms.FileField(
        required=False,
        allow_empty_file=True,  # the service says what is wrong with it
        label="File",
        help_text="JSON lines with text and title, or plain text, where each paragraph is a document.",
        widget=forms.FileInput(attrs={"accept": ".jsonl,.ndjson,.json,.txt,.md,text/plain"}),
    )
    text = forms.CharField(
        required=False,
        strip=False,
        max_length=MAX_PASTED,
        label="Or paste them",
        widget=forms.Textarea(attrs={"rows": 5, "class": "mono", "spellcheck": "false", "placeholder": EXAMPLE}),
    )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        given = [cleaned.get("file") is not None, bool(cleaned.get("text", "").strip())]
        if not self.errors and sum(given) != 1:
            self.add_error("file", "Choose a file or paste documents, not both." if all(given) else "Choose a file.")
        return cleaned

    def stream(self) -> BinaryIO:
        """What was sent, as bytes."""
        file = self.cleaned_data["file"]
        return io.BytesIO(self.cleaned_data["text"].encode()) if file is None else file.file


class TokenForm(forms.Form):
    """A secret; it is never shown again, not even in the form that was refused."""

    name = forms.CharField(
        max_length=64,
        label="Name",
        help_text="Lower-case letters, digits, dots, hyphens, underscores. Jobs name the token by it.",
        error_messages={"required": "Give the token a name."},
        widget=forms.TextInput(attrs={"placeholder": "game-server", "autocomplete": "off", "autocapitalize": "off"}),
    )
    value = forms.CharField(
        label="Value",
        help_text="Sent as Authorization: Bearer. It cannot be shown again.",
        error_messages={"required": "Give the token's value."},
        widget=forms.PasswordInput(attrs={"autocomplete": "off", "spellcheck": "false"}),
    )
